import type { ReactNode } from 'react';

import { Badge } from '../components/Badge';
import { DataTable } from '../components/DataTable';
import { count, DASH } from '../format';
import { shortName } from '../names';
import type { Candidate } from '../wire';
import { reasonInWords } from './barred';
import { CostBar } from './CostBar';
import { blocksOf, gross, TERMS } from './terms';
import '../styles/candidates.css';

type Props = {
  name: string;
  /** The chosen one first. */
  candidates: readonly Candidate[];
  barred: readonly Candidate[];
  blocks: number | null;
};

/** Workers with the terms of their costs; those that could not be chosen come last, with the reason. */
export function CandidateTable({ name, candidates, barred, blocks }: Props) {
  const longest = Math.max(0, ...candidates.map(gross));
  return (
    <DataTable name={name} caption="Candidates and their costs, in blocks" hideCaption className="candidates">
      <thead>
        <tr>
          <th scope="col">Worker</th>
          <th scope="col">Held blocks</th>
          {TERMS.map((term) => (
            <th key={term.key} scope="col">
              <span className="cost-key" data-part={term.part} aria-hidden="true" /> {term.name}
            </th>
          ))}
          <th scope="col">Home credit</th>
          <th scope="col">Cost</th>
          <td className="candidates__bars" />
        </tr>
      </thead>
      <tbody>
        {candidates.map((candidate, at) => (
          <Row key={at} candidate={candidate} chosen={at === 0} blocks={blocks} longest={longest} />
        ))}
        {barred.map((candidate, at) => (
          <BarredRow key={at} candidate={candidate} blocks={blocks} />
        ))}
      </tbody>
    </DataTable>
  );
}

type RowProps = { candidate: Candidate; blocks: number | null };

function Row({ candidate, chosen, blocks, longest }: RowProps & { chosen: boolean; longest: number }) {
  return (
    <tr data-testid="candidate" data-chosen={chosen}>
      <WorkerCell candidate={candidate}>{chosen && <Badge tone="accent">chosen</Badge>}</WorkerCell>
      <HeldCell candidate={candidate} blocks={blocks} />
      {TERMS.map(({ key }) => (
        <td key={key}>{blocksOf(candidate[key])}</td>
      ))}
      <td>
        {candidate.home_credit ? `-${blocksOf(candidate.home_credit)}` : blocksOf(candidate.home_credit)}
      </td>
      <td className="candidates__cost">{blocksOf(candidate.cost)}</td>
      <td className="candidates__bars">
        <CostBar candidate={candidate} longest={longest} />
      </td>
    </tr>
  );
}

function BarredRow({ candidate, blocks }: RowProps) {
  return (
    <tr data-testid="barred" className="candidates__barred">
      <WorkerCell candidate={candidate} />
      <HeldCell candidate={candidate} blocks={blocks} />
      <td colSpan={TERMS.length + 3} className="left">
        not possible: {reasonInWords(candidate.barred ?? 'barred')}
      </td>
    </tr>
  );
}

function WorkerCell({ candidate, children }: { candidate: Candidate; children?: ReactNode }) {
  return (
    <th scope="row" title={candidate.worker ?? undefined}>
      {candidate.worker === null ? DASH : shortName(candidate.worker)} {children}
    </th>
  );
}

/** Blocks that are only expected to be there, because a request was just placed, are told apart. */
function HeldCell({ candidate, blocks }: RowProps) {
  const expected = candidate.expected_blocks ?? 0;
  return (
    <td title={expected > 0 ? `and ${count(expected)} expected soon` : undefined}>
      {count(candidate.held_blocks)}
      {blocks !== null && ` of ${count(blocks)}`}
    </td>
  );
}
