import { Benchmark } from '../dashboard/Benchmark';
import { Infrastructure } from '../dashboard/Infrastructure';
import { KpiRow } from '../dashboard/KpiRow';
import { LivePanel } from '../dashboard/LivePanel';

/** Four sections, one below the other. */
export function Dashboard() {
  return (
    <>
      <LivePanel />
      <KpiRow />
      <Benchmark />
      <Infrastructure />
    </>
  );
}
