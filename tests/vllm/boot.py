from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
import torch


class HeadlessWorker(Worker):
    def init_device(self):
        from vllm.utils.torch_utils import set_random_seed

        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        set_random_seed(self.model_config.seed)
        self._init_workspace_and_model_runner()

    def determine_available_memory(self):
        with torch.inference_mode():
            self.model_runner.profile_run()
        return 1 << 28
