# ranks: 2
# kind: none
# faulty: any
# lines:
# profile: gloo
# what: correct: works are kept in a dict and waited for in reverse and through a future, before any use of the tensors
import torch
import torch.distributed as dist


class Bucketer:
    def __init__(self):
        self.pending = {}

    def launch(self, name, t):
        self.pending[name] = (dist.all_reduce(t, async_op=True), t)

    def drain(self):
        for name in reversed(list(self.pending)):
            work, t = self.pending.pop(name)
            if name == "b":
                work.get_future().wait()
            else:
                work.wait()
            t.div_(dist.get_world_size())


dist.init_process_group("gloo")
ts = {n: torch.ones(k) for n, k in (("a", 4), ("b", 4), ("c", 2))}
bk = Bucketer()
for n, t in ts.items():
    bk.launch(n, t)
bk.drain()
assert all(t.eq(1).all() for t in ts.values())
dist.destroy_process_group()
