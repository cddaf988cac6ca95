"""GPUs: streams, kernels, and which device a rank means where there are fewer than ranks."""
