import { Card } from '../components/Card';
import { Complaint } from '../components/Complaint';
import { StatusBadge } from '../conversations/StatusBadge';
import { TtftByTurn } from '../conversations/TtftByTurn';
import { TurnPart } from '../conversations/TurnPart';
import { useConversation } from '../conversations/useConversation';
import { clock, duration } from '../format';
import { href } from '../routes';
import '../styles/conversations.css';

/** One conversation, turn by turn: what was said, what it took, and why it went there. */
export default function Conversation({ id }: { id: number }) {
  const { data, complaint, forgotten } = useConversation(id);
  return (
    <>
      <Card
        title={data?.topic ?? `Conversation ${id}`}
        className="conversation"
        aside={<a href={href({ page: 'conversations' })}>All conversations</a>}
      >
        {complaint !== null && (
          <Complaint>
            {forgotten ? 'This conversation is no longer kept: only the latest ones are.' : complaint}
          </Complaint>
        )}
        {data !== null && (
          <>
            <p className="conversation__facts" data-testid="facts">
              <StatusBadge status={data.status} />
              <span>
                {data.turns_done} of {data.turns_planned} turns
              </span>
              <span>{duration(data.duration_s)}</span>
              <span className="quiet">started {clock(data.started)}</span>
            </p>
            <h3>Time to first token, turn by turn</h3>
            <TtftByTurn turns={data.turns} />
          </>
        )}
      </Card>
      {data?.turns.map((turn) => (
        <TurnPart key={turn.turn} turn={turn} />
      ))}
    </>
  );
}
