import { api } from '../api';
import { Card } from '../components/Card';
import { Complaint } from '../components/Complaint';
import { DataTable } from '../components/DataTable';
import { ConversationRow } from '../conversations/ConversationRow';
import { count } from '../format';
import { usePolling } from '../hooks/usePolling';
import '../styles/conversations.css';

const EVERY_MS = 5000;

/** All conversations that are kept, the newest first. */
export default function Conversations() {
  const { data, complaint } = usePolling(api.conversations, EVERY_MS);
  const summary = data === null ? 'Loading' : `${count(data.active)} active, ${count(data.started)} started`;
  return (
    <Card title="Conversations" aside={<span className="quiet">{summary}</span>}>
      {complaint !== null && <Complaint>{complaint}</Complaint>}
      {data !== null && data.conversations.length === 0 && (
        <p className="quiet">No conversations yet. They appear once the load is started.</p>
      )}
      {data !== null && data.conversations.length > 0 && (
        <DataTable name="Conversations" caption="Refreshed every 5 s" className="conversations">
          <thead>
            <tr>
              <th scope="col">Status</th>
              <th scope="col" className="left">
                Topic
              </th>
              <th scope="col">Turns</th>
              <th scope="col">Duration</th>
              <th scope="col">Started</th>
            </tr>
          </thead>
          <tbody>
            {data.conversations.map((line) => (
              <ConversationRow key={line.id} of={line} />
            ))}
          </tbody>
        </DataTable>
      )}
    </Card>
  );
}
