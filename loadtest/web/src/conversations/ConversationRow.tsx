import { clock, duration } from '../format';
import { go, href, type Route } from '../routes';
import type { ConversationLine } from '../wire';
import { StatusBadge } from './StatusBadge';

/** A conversation in a line. The whole row opens it; for keyboards the topic is a link. */
export function ConversationRow({ of }: { of: ConversationLine }) {
  const route: Route = { page: 'conversation', id: of.id };
  return (
    <tr className="conversation-row" data-testid="conversation" onClick={() => go(route)}>
      <td>
        <StatusBadge status={of.status} />
      </td>
      <th scope="row" className="left">
        <a href={href(route)}>{of.topic}</a>
      </th>
      <td>
        {of.turns_done} of {of.turns_planned}
      </td>
      <td>{duration(of.duration_s)}</td>
      <td>{clock(of.started)}</td>
    </tr>
  );
}
