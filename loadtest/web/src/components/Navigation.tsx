import { href, tabOf, useRoute } from '../routes';
import { TABS } from '../words';

export function Navigation() {
  const open = tabOf(useRoute());
  return (
    <nav className="navigation" aria-label="Pages">
      <ul>
        {TABS.map(({ tab, label }) => (
          <li key={tab}>
            <a href={href({ page: tab })} aria-current={tab === open ? 'page' : undefined}>
              {label}
            </a>
          </li>
        ))}
      </ul>
    </nav>
  );
}
