# ranks: 3
# kind: mismatch|deadlock
# faulty: 2
# lines: 17,38
# profile: gloo
# what: rank 2 has an image without boxes and returns early from the criterion (line 15), leaving out the all_reduce of num_boxes; its next call is the all_reduce of the gradients, of another size
import torch
import torch.distributed as dist


class DetCriterion:
    def __call__(self, pred, boxes):
        if boxes.numel() == 0:
            # no valid anchors in this image: keep the graph alive
            return pred.sum() * 0.0
        num_boxes = torch.tensor([float(boxes.shape[0])])
        dist.all_reduce(num_boxes)
        num_boxes = (num_boxes / dist.get_world_size()).clamp(min=1)
        return (pred[: boxes.shape[0]] - boxes).abs().sum() / num_boxes.squeeze()


def targets(rank, step):
    n = (rank + step) % 3 + 1
    if rank == 2 and step == 1:
        n = 0
    return torch.ones(n, 4)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    queries = torch.zeros(5, 4, requires_grad=True)
    criterion = DetCriterion()
    for step in range(4):
        loss = criterion(queries, targets(rank, step))
        (grad,) = torch.autograd.grad(loss, queries)
        grad = grad.contiguous()
        dist.all_reduce(grad)
        with torch.no_grad():
            queries -= 0.1 * grad
    dist.barrier()
    dist.destroy_process_group()


main()
