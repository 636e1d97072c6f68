import { DataTable } from '../components/DataTable';
import { useFeed } from '../feed/useFeed';
import { clock } from '../format';
import { href } from '../routes';
import type { SweepLine } from '../wire';
import { KINDS } from './kinds';
import { latest, leftInWords } from './progress';
import { SweepBadge } from './SweepBadge';

/** Sweeps that were asked for, the newest first; the one that runs is as the feed has it. */
export function SweepList({ sweeps }: { sweeps: readonly SweepLine[] }) {
  const progress = useFeed((world) => world.sweep);
  if (sweeps.length === 0) return <p className="quiet">No sweep was started on this server yet.</p>;
  return (
    <DataTable
      name="Sweeps"
      caption="Sweeps of this server, the newest first"
      hideCaption
      className="sweep-list"
    >
      <thead>
        <tr>
          <th scope="col">Sweep</th>
          <th scope="col" className="left">
            What
          </th>
          <th scope="col" className="left">
            Clock
          </th>
          <th scope="col" className="left">
            State
          </th>
          <th scope="col">Done</th>
          <th scope="col">Time left</th>
          <th scope="col">Started</th>
        </tr>
      </thead>
      <tbody>
        {[...sweeps]
          .sort((one, other) => other.id - one.id)
          .map((line) => {
            const now = latest(line, progress);
            return (
              <tr key={line.id} data-testid="sweep">
                <th scope="row">
                  <a href={href({ page: 'sweep', id: line.id })}>Sweep {line.id}</a>
                </th>
                <td className="left sweep-list__name">{line.name}</td>
                <td className="left">{KINDS[line.kind].label}</td>
                <td className="left">
                  <SweepBadge state={now.state} />
                </td>
                <td>
                  {now.done} of {now.of}
                </td>
                <td>{leftInWords(now)}</td>
                <td>{clock(line.started)}</td>
              </tr>
            );
          })}
      </tbody>
    </DataTable>
  );
}
