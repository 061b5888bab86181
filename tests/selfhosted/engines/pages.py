"""Pages as engines send them, shortened: vLLM's and llama.cpp's were taken from running ones."""

VLLM = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7952531643e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 0.0
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 0.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="discard_all"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 4154.0
# HELP vllm:prefix_cache_hits_total Prefix cache hits, in terms of number of cached tokens.
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 2304.0
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 0.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 4154.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 5577.0
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="tiny"} 15.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 23.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 23.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 19.542776584625244
# HELP vllm:inter_token_latency_seconds Histogram of inter-token latency in seconds.
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.5",model_name="tiny"} 5554.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 5554.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="tiny"} 5554.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="tiny"} 13.665207838999095
# HELP vllm:lora_requests_info Running stats on lora requests.
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.7952532374428427e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="lora-a",waiting_lora_adapters="lora-a"} 1.7952532324719734e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="lora-b",waiting_lora_adapters="lora-b"} 1.7952532325124745e+09
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="True",engine="0",kv_cache_dtype_skip_layers="[]",kv_cache_size_tokens="1048576",num_cpu_blocks="None",num_gpu_blocks="8192",sliding_window="None"} 1.0
"""

VLLM_OLD = """\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="llama"} 3.0
vllm:num_requests_swapped{model_name="llama"} 0.0
vllm:num_requests_waiting{model_name="llama"} 2.0
vllm:gpu_cache_usage_perc{model_name="llama"} 0.25
vllm:cpu_cache_usage_perc{model_name="llama"} 0.0
vllm:gpu_prefix_cache_queries{model_name="llama"} 1000.0
vllm:gpu_prefix_cache_hits{model_name="llama"} 250.0
vllm:num_preemptions_total{model_name="llama"} 4.0
vllm:prompt_tokens_total{model_name="llama"} 900.0
vllm:generation_tokens_total{model_name="llama"} 80.0
vllm:time_per_output_token_seconds_sum{model_name="llama"} 2.0
vllm:time_per_output_token_seconds_count{model_name="llama"} 80.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_cpu_blocks="2048",num_gpu_blocks="1000"} 1.0
"""

VLLM_TWO_ENGINES = """\
vllm:num_requests_running{engine="0",model_name="llama"} 3.0
vllm:num_requests_running{engine="1",model_name="llama"} 5.0
vllm:num_requests_waiting{engine="0",model_name="llama"} 1.0
vllm:num_requests_waiting{engine="1",model_name="llama"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="llama"} 0.6
vllm:prefix_cache_queries_total{engine="0",model_name="llama"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="llama"} 300.0
vllm:prefix_cache_hits_total{engine="0",model_name="llama"} 50.0
vllm:prefix_cache_hits_total{engine="1",model_name="llama"} 150.0
vllm:engine_sleep_state{engine="0",model_name="llama",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",model_name="llama",sleep_state="awake"} 1.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="500"} 1.0
"""

SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 14.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="-1",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="0",tp_rank="0"} 10.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",priority="0",tp_rank="0"} 3.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 161721.0
sglang:page_size{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 64.0
sglang:cache_hit_rate{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.5
sglang:prompt_tokens_total{model_name="m"} 8000.0
sglang:generation_tokens_total{model_name="m"} 700.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 3000.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 500.0
sglang:num_retracted_reqs_total{model_name="m"} 2.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 12.5
sglang:time_to_first_token_seconds_count{model_name="m"} 50.0
sglang:inter_token_latency_seconds_sum{model_name="m"} 7.0
sglang:inter_token_latency_seconds_count{model_name="m"} 650.0
"""

SGLANG_OLD = """\
sglang:max_total_num_tokens{name="google/gemma-2-9b-it"} 161721.0
sglang:max_running_requests{name="google/gemma-2-9b-it"} 2527.0
sglang:num_running_reqs{name="google/gemma-2-9b-it"} 161.0
sglang:num_queue_reqs{name="google/gemma-2-9b-it"} 2826.0
sglang:token_usage{name="google/gemma-2-9b-it"} 0.28
sglang:prompt_tokens_total{name="google/gemma-2-9b-it"} 8.128902e+06
sglang:generation_tokens_total{name="google/gemma-2-9b-it"} 7.557572e+06
sglang:time_per_output_token_seconds_sum{name="google/gemma-2-9b-it"} 866.0
sglang:time_per_output_token_seconds_count{name="google/gemma-2-9b-it"} 7400.0
sglang:cache_config_info{num_pages="161721",page_size="1"} 1.0
"""

TGI = """\
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="1"} 0
tgi_request_generated_tokens_sum 8123
tgi_request_generated_tokens_count 44
tgi_request_input_length_sum 4400
tgi_request_input_length_count 44
tgi_request_mean_time_per_token_duration_sum 0.9
tgi_request_mean_time_per_token_duration_count 44
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
# TYPE tgi_queue_size gauge
tgi_queue_size 7
"""

TRTLLM = """\
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 2.0
trtllm_max_num_active_requests{engine_type="trtllm",model_name="m"} 256.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.5
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="m"} 0.2
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 500.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 100.0
trtllm_time_to_first_token_seconds_sum{engine_type="trtllm",model_name="m"} 3.0
trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="m"} 6.0
trtllm_time_per_output_token_seconds_sum{engine_type="trtllm",model_name="m"} 0.6
trtllm_time_per_output_token_seconds_count{engine_type="trtllm",model_name="m"} 6.0
"""

TRITON = """\
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 6
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1560
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 4680
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6240
"""

TRTLLM_JSON = (
    b'[{"iter":1,"numActiveRequests":1,"numQueuedRequests":0},'
    b'{"iter":2,"numActiveRequests":5,"numQueuedRequests":3,"maxNumActiveRequests":64,"gpuMemUsage":76000000000,'
    b'"kvCacheStats":{"maxNumBlocks":200,"usedNumBlocks":50,"freeNumBlocks":150,"tokensPerBlock":32}}]'
)

LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 51
# TYPE llamacpp:prompt_tokens_cached_total counter
llamacpp:prompt_tokens_cached_total 24
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 0.634162
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 12
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 0.4407
# TYPE llamacpp:n_decode_total counter
llamacpp:n_decode_total 12
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 49
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 0
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 0
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 0
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 80.4211
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 22.6912
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 0
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 0
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 1
"""

LLAMA_PROPS = (
    b'{"default_generation_settings":{"n_ctx":2048,"params":{"seed":1}},"total_slots":4,"model_path":"x.gguf"}'
)

DCGM = """\
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",pod="llama-0"} 20000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-b",pod="llama-1"} 60000
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",pod="llama-0"} 59000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-b",pod="llama-1"} 19000
DCGM_FI_DEV_FB_RESERVED{gpu="0",UUID="GPU-a",pod="llama-0"} 1000
DCGM_FI_DEV_FB_RESERVED{gpu="1",UUID="GPU-b",pod="llama-1"} 1000
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",pod="llama-0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",pod="llama-1"} 10
"""
