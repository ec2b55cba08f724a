{{/*
What a pool of nodes needs, worked out from its values; each answer is JSON for fromJson. What
cannot work fails here, with a sentence, and not on the nodes.
*/}}

{{/* A size such as 512Mi in bytes: (dict "size" VALUE "at" "the value's name"). */}}
{{- define "tierline.bytes" -}}
{{- $size := toString .size -}}
{{- if not (regexMatch "^[1-9][0-9]{0,6}(Ki|Mi|Gi|Ti)$" $size) -}}
{{- fail (printf "%s is %q; write a whole number with Ki, Mi, Gi or Ti, such as 512Mi" .at $size) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+" $size | int64 -}}
{{- $unit := regexReplaceAll "^[0-9]+" $size "" -}}
{{- if and (eq $unit "Ti") (gt $number 1048576) -}}
{{- fail (printf "%s is %q, which no machine has; write at most 1048576Ti" .at $size) -}}
{{- end -}}
{{- $powers := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul $number (get $powers $unit | int64) -}}
{{- end }}

{{/* Fails where two pools can choose one node: its devices would have two owners. */}}
{{- define "tierline.pools.apart" -}}
{{- $pools := . -}}
{{- range $name, $pool := $pools -}}
{{- range $other, $second := $pools -}}
{{- if lt $name $other -}}
{{- $apart := list -}}
{{- $chosen := $second.nodeSelector | default dict -}}
{{- range $label, $value := $pool.nodeSelector -}}
{{- if and (hasKey $chosen $label) (ne (get $chosen $label) $value) -}}
{{- $apart = append $apart $label -}}
{{- end -}}
{{- end -}}
{{- if not $apart -}}
{{- fail (printf "agent.pools.%s and agent.pools.%s can choose one node, whose devices would have two owners; give both one label in nodeSelector with two values" $name $other) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
The agent's settings (tierline_agent/config.py): (dict "name" POOL "pool" VALUES "agent" .Values.agent
"margins" .Values.operator.margins).
*/}}
{{- define "tierline.agent.settings" -}}
{{- $at := printf "agent.pools.%s" .name -}}
{{- $extent := .pool.extentSize | default (ternary "32Mi" "4Mi" (hasKey .pool.devices "gpus")) -}}
{{- $extentBytes := include "tierline.bytes" (dict "size" $extent "at" "extentSize") | int64 -}}
{{- $devices := list -}}
{{- range $kind, $chosen := .pool.devices -}}
{{- $where := printf "%s.devices.%s.fastMemory" $at $kind -}}
{{- $fastBytes := include "tierline.bytes" (dict "size" $chosen.fastMemory "at" $where) | int64 -}}
{{- if lt $fastBytes $extentBytes -}}
{{- fail (printf "%s %s holds not one extent of %s; give more, or a smaller extentSize" $where $chosen.fastMemory $extent) -}}
{{- end -}}
{{- if gt $fastBytes 70368744177664 -}}
{{- fail (printf "%s %s is more than 64Ti, which no device has; write what tasks may use of it" $where $chosen.fastMemory) -}}
{{- end -}}
{{- $device := dict "fast_bytes" $fastBytes "extent_bytes" $extentBytes -}}
{{- if eq $kind "cpu" -}}
{{- $devices = append $devices (merge (dict "kind" "cpu" "margin" $.margins.cpu) $device) -}}
{{- else -}}
{{- range $index := until (int $chosen.count) -}}
{{- $devices = append $devices (merge (dict "kind" "cuda" "index" $index "margin" $.margins.cuda) $device) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .pool.devices.gpus -}}
{{- if not (or .runtimeClassName .driverDir) -}}
{{- fail (printf "%s.devices.gpus: nothing brings the GPU driver's libraries to the agent; give runtimeClassName (usually nvidia) or driverDir" $at) -}}
{{- end -}}
{{- end -}}
{{- if not $devices -}}
{{- fail (printf "%s has no device; give devices.cpu or devices.gpus" $at) -}}
{{- end -}}
{{- $tiers := list -}}
{{- $paths := list -}}
{{- range $name, $tier := .pool.tiers -}}
{{- $where := printf "%s.tiers.%s" $at $name -}}
{{- $sizeBytes := 0 -}}
{{- if $tier.size -}}
{{- $sizeBytes = include "tierline.bytes" (dict "size" $tier.size "at" (printf "%s.size" $where)) | int64 -}}
{{- if lt $sizeBytes $extentBytes -}}
{{- fail (printf "%s.size %s holds not one extent of %s; give more, or a smaller extentSize" $where $tier.size $extent) -}}
{{- end -}}
{{- else if not (include "tierline.device" $tier.path) -}}
{{- fail (printf "%s: %s is a file, whose size is needed; give %s.size" $where $tier.path $where) -}}
{{- end -}}
{{- if has $tier.path $paths -}}
{{- fail (printf "%s.path %s is another tier's as well; give each its own" $where $tier.path) -}}
{{- end -}}
{{- $paths = append $paths $tier.path -}}
{{- $tiers = append $tiers (dict "name" $name "path" $tier.path "size_bytes" $sizeBytes) -}}
{{- end -}}
{{- if not $tiers -}}
{{- fail (printf "%s has no tier; give one of tiers.dram, tiers.pmem and tiers.nvme" $at) -}}
{{- end -}}
{{- dict
  "state_dir" "/var/lib/tierline/agent"
  "run_dir" "/run/tierline"
  "devices" $devices
  "tiers" $tiers
  "job_limit_s" (.pool.jobLimitSeconds | default 30)
  "metrics_address" "0.0.0.0"
  "metrics_port" 9464
  "kubernetes" (dict
    "plugin_dir" (printf "%s/plugins/tierline.io" .agent.kubeletDir)
    "registry_dir" (printf "%s/plugins_registry" .agent.kubeletDir)
    "cdi_dir" .agent.cdiDir
    "pods_dir" "/var/lib/tierline/pods"
    "library_dir" "/var/lib/tierline/lib"
    "reconnect_s" .agent.reconnectSeconds
    "hand_over" .agent.handOver
  )
| toJson -}}
{{- end }}

{{/* "true" for the path of a device node, "" for that of a file. */}}
{{- define "tierline.device" -}}
{{- if and (hasPrefix "/dev/" .) (not (hasPrefix "/dev/shm/" .)) -}}true{{- end -}}
{{- end }}

{{/* "true" if a pool's agent opens device nodes: GPUs, or a tier that is a device itself. */}}
{{- define "tierline.agent.privileged" -}}
{{- $opens := list (ternary "true" "" (hasKey .pool.devices "gpus")) -}}
{{- range .pool.tiers -}}
{{- $opens = append $opens (include "tierline.device" .path) -}}
{{- end -}}
{{- has "true" $opens | ternary "true" "" -}}
{{- end }}

{{/* Folders of the node in which tiers have their files, in addition to those that each agent has. */}}
{{- define "tierline.agent.folders" -}}
{{- $at := printf "agent.pools.%s" .name -}}
{{- $taken := list "/" "/etc/tierline" "/etc/cdi" .agent.cdiDir (printf "%s/plugins/tierline.io" .agent.kubeletDir) (printf "%s/plugins_registry" .agent.kubeletDir) -}}
{{- with .pool.devices.gpus -}}
{{- $taken = append $taken (.driverDir | default "/") -}}
{{- end -}}
{{- $system := list "/bin" "/boot" "/etc" "/lib" "/lib32" "/lib64" "/proc" "/root" "/sbin" "/sys" "/usr" -}}
{{- $shared := list "/home" "/opt" "/run" "/srv" "/tmp" "/var" "/var/lib" "/var/log" "/var/run" "/var/tmp" -}}
{{- $folders := list -}}
{{- range $name, $tier := .pool.tiers -}}
{{- if not (or (include "tierline.device" .path) (has (dir .path) (list "/var/lib/tierline" "/run/tierline"))) -}}
{{- if has (dir .path) $taken -}}
{{- fail (printf "%s.tiers.%s.path %s is in %s, which cannot be a tier's folder in the agent's container; choose another folder, such as /var/lib/tierline" $at $name .path (dir .path)) -}}
{{- end -}}
{{- $own := printf "%s/" (dir .path) -}}
{{- if or (has (regexFind "^/[^/]*" .path) $system) (has (dir .path) $shared) (hasPrefix (printf "%s/" $.agent.kubeletDir) $own) (hasPrefix "/var/lib/containerd/" $own) -}}
{{- fail (printf "%s.tiers.%s.path %s is in %s, which others on the node use and the agent's container would see; choose a folder for tiers alone, such as /var/lib/tierline" $at $name .path (dir .path)) -}}
{{- end -}}
{{- $folders = append $folders (dir .path) -}}
{{- end -}}
{{- end -}}
{{- $folders | uniq | sortAlpha | toJson -}}
{{- end }}

{{/*
Compute resources. What lies in memory is charged to the agent: fast memory of the device cpu, and
the tier dram. The scheduler must know, and the kernel must not end the agent for it.
*/}}
{{- define "tierline.agent.resources" -}}
{{- $bytes := 536870912 -}}
{{- with .pool.devices.cpu -}}
{{- $bytes = add $bytes (include "tierline.bytes" (dict "size" .fastMemory "at" "fastMemory") | int64) -}}
{{- end -}}
{{- with .pool.tiers.dram -}}
{{- $bytes = add $bytes (include "tierline.bytes" (dict "size" .size "at" "size") | int64) -}}
{{- end -}}
{{- $resources := deepCopy .agent.resources -}}
{{- $limit := dig "limits" "memory" "" $resources -}}
{{- if and $limit (lt (include "tierline.bytes" (dict "size" $limit "at" "agent.resources.limits.memory") | int64) $bytes) -}}
{{- fail (printf "agent.resources.limits.memory %s is below the %dMi that agents of the pool %s keep in memory (fast memory of cpu, tier dram, 512Mi of their own); raise it or leave it out" $limit (div $bytes 1048576) .name) -}}
{{- end -}}
{{- if not (dig "requests" "memory" "" $resources) -}}
{{- $_ := set $resources "requests" (merge (dict "memory" (printf "%dMi" (div $bytes 1048576))) ($resources.requests | default dict)) -}}
{{- end -}}
{{- include "tierline.resources" (dict "resources" $resources "at" "agent.resources") -}}
{{- end }}
