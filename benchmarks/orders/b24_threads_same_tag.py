# ranks: 2
# decides: order
# kind: rank-failed
# lines: 14,20,32
# minimum: 1
# report: https://github.com/pytorch/pytorch/issues/63486
# what: two threads of rank 0 send to rank 1 with the same tag, and rank 1 takes what comes
#     first for the activation
import threading

import torch
import torch.distributed as dist

ACTIVATION = GRADIENT = 0


def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        threads = [
            threading.Thread(target=dist.send, args=(torch.full((2,), value), 1, None, tag))
            for value, tag in ((1.0, ACTIVATION), (2.0, GRADIENT))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        activation, gradient = torch.empty(2), torch.empty(2)
        dist.recv(activation, src=0, tag=ACTIVATION)
        dist.recv(gradient, src=0, tag=GRADIENT)
        assert activation.tolist() == [1.0, 1.0], f"activation {activation.tolist()}"
        assert gradient.tolist() == [2.0, 2.0], f"gradient {gradient.tolist()}"
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
