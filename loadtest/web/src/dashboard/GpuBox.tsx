import { Meter } from '../components/Meter';
import { percent } from '../format';
import { gpuLevel, memoryPct } from '../slo';
import type { Gpu } from '../wire';

/** One GPU: how busy it is, and how full. */
export function GpuBox({ gpu }: { gpu: Gpu }) {
  const level = gpuLevel(gpu.util_pct);
  const memory = memoryPct(gpu.memory_used_mib, gpu.memory_total_mib);
  return (
    <li className="gpu" data-testid="gpu">
      <div className="gpu__line">
        <span>GPU {gpu.index}</span>
        <strong data-testid="gpu-util" data-level={level}>
          {percent(gpu.util_pct)}
        </strong>
      </div>
      <Meter
        label={`GPU ${gpu.index} utilisation`}
        value={gpu.util_pct}
        words={percent(gpu.util_pct)}
        level={level}
      />
      <div className="gpu__line quiet">
        <span>Memory</span>
        <span data-testid="gpu-memory">{percent(memory)}</span>
      </div>
      <Meter label={`GPU ${gpu.index} memory`} value={memory} words={percent(memory)} />
    </li>
  );
}
