import type { ReactNode } from 'react';

type DataTableProps = {
  caption: ReactNode;
  /** Read aloud only. */
  hideCaption?: boolean;
  /** What the place it scrolls in is called. */
  name: string;
  className?: string;
  children: ReactNode;
};

/** A table that scrolls by itself where the page is too narrow for it. */
export function DataTable({ caption, hideCaption = false, name, className = '', children }: DataTableProps) {
  return (
    <div className="table-scroll" role="group" aria-label={name} tabIndex={0}>
      <table className={`table ${className}`}>
        <caption className={hideCaption ? 'visually-hidden' : ''}>{caption}</caption>
        {children}
      </table>
    </div>
  );
}
