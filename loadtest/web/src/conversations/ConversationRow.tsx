import type { MouseEvent } from 'react';

import { clock, duration } from '../format';
import { go, href, type Route } from '../routes';
import type { ConversationLine } from '../wire';
import { StatusBadge } from './StatusBadge';

/** A conversation in a line. The whole row opens it; for keyboards the topic is a link. */
export function ConversationRow({ of }: { of: ConversationLine }) {
  const route: Route = { page: 'conversation', id: of.id };
  const open = (event: MouseEvent) => {
    // The link opens what it leads to by itself, also in a tab of its own.
    const isOnLink = event.target instanceof Element && event.target.closest('a') !== null;
    if (!isOnLink) go(route);
  };
  return (
    <tr className="conversation-row" data-testid="conversation" onClick={open}>
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
