import { Card } from '../components/Card';
import { Complaint } from '../components/Complaint';
import { useFeed } from '../feed/useFeed';
import { clock } from '../format';
import { href } from '../routes';
import { KINDS } from '../sweeps/kinds';
import { latest } from '../sweeps/progress';
import { SweepBadge } from '../sweeps/SweepBadge';
import { SweepProgress } from '../sweeps/SweepProgress';
import { SweepResultsPart } from '../sweeps/SweepResultsPart';
import { useSweep } from '../sweeps/useSweep';
import '../styles/drawings.css';
import '../styles/sweeps.css';

/** One sweep: how far it is and what it came to. */
export default function Sweep({ id }: { id: number }) {
  const { data, complaint } = useSweep(id);
  const progress = useFeed((world) => world.sweep);
  const status = data === null ? null : latest(data, progress);
  const measured = data?.results?.sets.some((set) => set.cells.length > 0) ?? false;
  return (
    <>
      <Card
        title={data === null ? `Sweep ${id}` : `Sweep ${id}, ${data.name}`}
        aside={<a href={href({ page: 'sweeps' })}>All sweeps</a>}
      >
        {complaint !== null && <Complaint>{complaint}</Complaint>}
        {data !== null && status !== null && (
          <>
            <p className="sweep-facts" data-testid="sweep-facts">
              <SweepBadge state={status.state} />
              <span>{KINDS[data.kind].label}</span>
              <span className="quiet">started {clock(data.started)}</span>
            </p>
            {data.error !== null && <Complaint>{data.error}</Complaint>}
            <SweepProgress id={id} status={status} />
          </>
        )}
      </Card>
      {data !== null && measured && data.results !== null && (
        <SweepResultsPart sweep={data} results={data.results} />
      )}
    </>
  );
}
