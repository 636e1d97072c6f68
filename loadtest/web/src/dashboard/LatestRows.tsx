import { VisuallyHidden } from '../components/VisuallyHidden';
import { clock, ms } from '../format';

const ROWS = 5;

type LatestRowsProps = { name: string; data: readonly (readonly (number | null)[])[]; digits: number };

/** The end of a chart, for those who cannot see it. */
export function LatestRows({ name, data, digits }: LatestRowsProps) {
  const [times = [], p50 = [], p95 = []] = data;
  const from = Math.max(0, times.length - ROWS);
  return (
    <VisuallyHidden>
      <table>
        <caption>{name}, latest</caption>
        <tbody>
          {times.slice(from).map((t, row) => (
            <tr key={t}>
              <th scope="row">{clock(t)}</th>
              <td>{ms(p50[from + row], digits)}</td>
              <td>{ms(p95[from + row], digits)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </VisuallyHidden>
  );
}
