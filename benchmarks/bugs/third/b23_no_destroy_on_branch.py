# ranks: 3
# kind: leak
# faulty: 1,2
# lines: 12
# profile: gloo
# what: only rank 0 tears the process group down; ranks 1,2 return from main() without destroy_process_group
import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    t = torch.ones(2)
    dist.all_reduce(t)
    dist.barrier()
    if dist.get_rank() != 0:
        return
    print("result", t.tolist())
    dist.destroy_process_group()


main()
