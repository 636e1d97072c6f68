import { api } from '../api';
import { REPORTS, type Report } from '../wire';

const NAMES: Record<Report, string> = {
  'report.html': 'Report with plots (HTML)',
  'report.md': 'Tables (Markdown)',
  'report.csv': 'Every cell (CSV)',
  'report.json': 'Results, to compare with (JSON)',
  'reference-rules.yml': 'Prometheus rules',
  'reference-lines.json': 'Grafana lines',
};

/** The sweep to take along. */
export function Downloads({ id }: { id: number }) {
  return (
    <ul className="downloads">
      {REPORTS.map((report) => (
        <li key={report}>
          <a href={api.reportAddress(id, report)} download>
            {NAMES[report]}
          </a>
        </li>
      ))}
    </ul>
  );
}
