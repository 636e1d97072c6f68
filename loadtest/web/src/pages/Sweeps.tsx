import { api } from '../api';
import { Card } from '../components/Card';
import { Complaint } from '../components/Complaint';
import { usePolling } from '../hooks/usePolling';
import { SweepForm } from '../sweeps/SweepForm';
import { SweepList } from '../sweeps/SweepList';
import '../styles/sweeps.css';

const EVERY_MS = 5000;

/** Start a sweep, and those that were started. */
export default function Sweeps() {
  const { data, complaint } = usePolling(api.sweeps, EVERY_MS);
  return (
    <>
      <Card title="Sweeps">
        <p className="lead">
          A sweep measures every mode at every level under the same load and shows how far the objective
          holds.
        </p>
        {complaint !== null && <Complaint>{complaint}</Complaint>}
        {data === null && complaint === null && <p className="quiet">Loading</p>}
        {data !== null && <SweepForm defaults={data.defaults} />}
      </Card>
      {data !== null && (
        <Card title="Sweeps on this server">
          <SweepList sweeps={data.sweeps} />
        </Card>
      )}
    </>
  );
}
