{{/* TensorRT-LLM's options beyond its flags. Takes root and pool. */}}
{{- define "kvlane.trtllmConfig" -}}
{{- $pool := .pool -}}
{{- $cache := dict "enable_block_reuse" true "tokens_per_block" (int .root.Values.router.blockSize) "dtype" $pool.kvCache.dtype "free_gpu_memory_fraction" (float64 $pool.kvCache.memoryFraction) -}}
{{- if .root.Values.workers.publishEvents -}}
{{- /* 0 would mean no events. When it is full the oldest are lost, and the bridge starts over. */ -}}
{{- $_ := set $cache "event_buffer_max_size" 65536 -}}
{{- end -}}
{{- /* Prometheus' figures are only there with return_perf_metrics. */ -}}
{{- $config := dict "enable_chunked_prefill" $pool.chunkedPrefill "disable_overlap_scheduler" (not $pool.overlapScheduler) "kv_cache_config" $cache "return_perf_metrics" true -}}
{{- with $pool.speculative.draftModel -}}
{{- $_ := set $config "speculative_config" (dict "decoding_type" "DraftTarget" "speculative_model_dir" . "max_draft_len" (int $pool.speculative.draftTokens)) -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy $pool.engineConfig) | toYaml -}}
{{- end -}}
