// Before anything is painted: light or dark, as somebody chose. src/hooks/useTheme.ts keeps the choice.
try {
  const theme = localStorage.getItem('kvlane.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be forbidden: then it is as the system has it.
}
