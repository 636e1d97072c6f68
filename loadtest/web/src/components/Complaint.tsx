/** What went wrong, said where it went wrong. */
export function Complaint({ children }: { children: string }) {
  return (
    <p role="alert" className="notice" data-tone="bad" data-testid="complaint">
      {children}
    </p>
  );
}
