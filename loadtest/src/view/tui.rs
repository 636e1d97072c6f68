//! A screen of figures. It is drawn on standard error, so that the report can go elsewhere.

use std::collections::VecDeque;
use std::io::{Stderr, stderr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Sparkline, Table};
use ratatui::{Frame, Terminal};
use tokio::time::Instant;

use crate::live::{Course, Level, Live, Phase, Report, Status};
use crate::measure::Summary;
use crate::results::shown;

#[derive(Debug)]
pub struct Tui {
    terminal: Terminal<CrosstermBackend<Stderr>>,
    screen: Screen,
}

/// What is drawn, apart from where.
#[derive(Debug)]
struct Screen {
    live: Arc<Live>,
    course: Course,
    /// TTFT p95 and tokens a second, one value a second.
    ttft: VecDeque<u64>,
    tokens: VecDeque<u64>,
    sampled: Instant,
    /// What a key led to, when it led to nothing.
    refused: Option<String>,
}

/// Values a sparkline keeps.
const HISTORY: usize = 240;
const SAMPLE: Duration = Duration::from_secs(1);

impl Tui {
    pub(super) fn open(live: Arc<Live>, course: Course) -> anyhow::Result<Self> {
        let terminal = Terminal::new(CrosstermBackend::new(stderr())).context("the terminal")?;
        enable_raw_mode().context("the terminal, expected one for --view tui")?;
        let tui = Self { terminal, screen: Screen::new(live, course) };
        execute!(stderr(), EnterAlternateScreen).context("the terminal")?;
        Ok(tui)
    }

    pub(super) fn tell(&mut self, phase: Phase) -> bool {
        self.screen.sample();
        let drawn = self.terminal.draw(|frame| self.screen.draw(frame, phase));
        // A terminal that is gone is no reason to end a measurement.
        drop(drawn);
        while event::poll(Duration::ZERO).unwrap_or(false) {
            if let Ok(Event::Key(key)) = event::read()
                && key.kind == KeyEventKind::Press
                && !self.screen.press(key.code, key.modifiers)
            {
                return false;
            }
        }
        true
    }
}

impl Drop for Tui {
    fn drop(&mut self) {
        let _ = disable_raw_mode();
        let _ = execute!(stderr(), LeaveAlternateScreen);
    }
}

impl Screen {
    fn new(live: Arc<Live>, course: Course) -> Self {
        let (ttft, tokens) = (VecDeque::new(), VecDeque::new());
        Self { live, course, ttft, tokens, sampled: Instant::now(), refused: None }
    }

    fn sample(&mut self) {
        if self.sampled.elapsed() < SAMPLE {
            return;
        }
        self.sampled = Instant::now();
        let last = self.live.status().last_minute;
        for (history, value) in [(&mut self.ttft, last.ttft_p95_ms), (&mut self.tokens, last.tops)] {
            history.push_back(value.unwrap_or(0.0) as u64);
            if history.len() > HISTORY {
                history.pop_front();
            }
        }
    }

    /// False for a key that ends it.
    fn press(&mut self, key: KeyCode, modifiers: KeyModifiers) -> bool {
        let up = match key {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('+' | '=') | KeyCode::Up => true,
            KeyCode::Char('-') | KeyCode::Down => false,
            _ => return true,
        };
        let level = match self.live.control.level() {
            Some(Level::Concurrency(count)) => {
                Level::Concurrency(if up { count + 5 } else { count.saturating_sub(5).max(1) })
            }
            Some(Level::Rate(rate)) => Level::Rate(if up { rate * 1.1 } else { rate / 1.1 }),
            None => Level::Concurrency(1),
        };
        self.refused = self.live.control.set(level).err().map(|error| error.to_string());
        true
    }

    fn draw(&self, frame: &mut Frame<'_>, phase: Phase) {
        let (status, report) = (self.live.status(), self.live.collector.report());
        let rows = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(1),
            Constraint::Length(5),
            Constraint::Length(6),
            Constraint::Min(4),
            Constraint::Length(2),
        ]);
        let [head, bar, kpis, curves, tables, foot] = rows.areas(frame.area());
        let level = status.level.map_or_else(|| "a schedule".to_owned(), |level| level.to_string());
        let title = Line::from(vec![level.bold(), Span::raw("  "), status.target.clone().dim()]);
        frame.render_widget(Paragraph::new(title), head);
        self.draw_progress(frame, bar, phase);
        draw_figures(frame, kpis, &status, &report);
        self.draw_curves(frame, curves);
        let [turns, workers] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(tables);
        draw_table(frame, turns, "by turn", report.by_turn.iter().map(|(turn, of)| (turn.to_string(), of)));
        draw_table(frame, workers, "by worker", report.by_worker.iter().map(|(name, of)| (name.clone(), of)));
        let keys =
            self.refused.as_deref().unwrap_or("+ more load   - less load   q ends it; the report follows");
        let complaint = report.complaints.iter().max_by_key(|(_, count)| **count);
        let wrong = complaint.map(|(what, count)| format!("{count} times: {what}")).unwrap_or_default();
        frame.render_widget(Paragraph::new(vec![wrong.red().into(), keys.dim().into()]), foot);
    }

    fn draw_progress(&self, frame: &mut Frame<'_>, area: Rect, phase: Phase) {
        let whole =
            if let Phase::WarmingUp { .. } = phase { self.course.warm_up } else { self.course.window };
        let gone = 1.0 - phase.left().as_secs_f64() / whole.as_secs_f64().max(1e-9);
        let label = format!("{}, {:.0} s left", phase.name(), phase.left().as_secs_f64());
        frame.render_widget(Gauge::default().ratio(gone.clamp(0.0, 1.0)).label(label), area);
    }

    fn draw_curves(&self, frame: &mut Frame<'_>, area: Rect) {
        let areas: [Rect; 2] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
        for (history, title, area) in
            [(&self.ttft, "TTFT p95, ms", areas[0]), (&self.tokens, "output tokens a second", areas[1])]
        {
            let wide = area.width.saturating_sub(2) as usize;
            let data: Vec<u64> = history.iter().rev().take(wide).rev().copied().collect();
            let most = data.iter().max().copied().unwrap_or(0);
            let block = Block::bordered().title(format!("{title} (top {most})"));
            frame.render_widget(Sparkline::default().block(block).data(data), area);
        }
    }
}

/// The objective's colours: kept, and not.
fn judged(value: Option<f64>, most: f64, digits: usize) -> Span<'static> {
    let text = shown(value, digits);
    match value {
        Some(value) if value > most => text.red().bold(),
        Some(_) => text.green().bold(),
        None => text.dim(),
    }
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, status: &Status, report: &Report) {
    let last = &status.last_minute;
    let objective = report.objective;
    let (ttft, itl) = (objective.ttft_s * 1e3, objective.tpot_s * 1e3);
    let plain = |text: String| text.bold();
    let cards: [(&str, Vec<Span<'_>>); 6] = [
        (
            "TTFT p50 / p95 ms",
            vec![judged(last.ttft_p50_ms, ttft, 0), " / ".into(), judged(last.ttft_p95_ms, ttft, 0)],
        ),
        (
            "ITL p50 / p95 ms",
            vec![judged(last.itl_p50_ms, itl, 1), " / ".into(), judged(last.itl_p95_ms, itl, 1)],
        ),
        (
            "latency p50 / p95 s",
            vec![plain(format!("{} / {}", shown(last.e2e_p50_s, 1), shown(last.e2e_p95_s, 1)))],
        ),
        ("tokens/s   requests/s", vec![plain(format!("{}   {}", shown(last.tops, 0), shown(last.rps, 2)))]),
        (
            "cached %   in time %",
            vec![plain(format!("{}   {}", shown(last.hit_pct, 1), shown(last.goodput_pct, 0)))],
        ),
        (
            "going on   failed %",
            vec![plain(format!("{}   ", status.active_conversations)), judged(last.error_pct, 0.0, 1)],
        ),
    ];
    let areas: [Rect; 6] = Layout::horizontal([Constraint::Fill(1); 6]).areas(area);
    for ((title, value), area) in cards.into_iter().zip(areas) {
        let block = Block::bordered().title(title);
        frame.render_widget(
            Paragraph::new(vec![Line::default(), Line::from(value).centered()]).block(block),
            area,
        );
    }
}

fn draw_table<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    of: impl Iterator<Item = (String, &'a Summary)>,
) {
    let row = |(name, of): (String, &Summary)| {
        let ms = |seconds: f64| format!("{:.0}", seconds * 1e3);
        let cached = of.cached_share.map_or_else(|| "—".to_owned(), |share| format!("{:.0}", share * 100.0));
        Row::new([name, of.requests.to_string(), ms(of.ttft_s.p50), ms(of.ttft_s.p95), cached])
    };
    let head =
        Row::new(["", "requests", "TTFT p50", "p95", "cached %"]).style(Style::new().fg(Color::DarkGray));
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(9),
    ];
    let table = Table::new(of.map(row), widths).header(head).block(Block::bordered().title(title.to_owned()));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::{Arrivals, Ramp};
    use crate::client::{Endpoint, Patience};
    use crate::live::{Collector, Load, TurnRecord};
    use crate::measure::{Measured, Objective};
    use crate::workload::Workload;
    use ratatui::backend::TestBackend;

    fn load(collector: &Arc<Collector>) -> Load {
        let prompt = crate::workload::Prompt { topic: "t".into(), messages: Vec::new(), max_tokens: None };
        Load {
            endpoint: Endpoint::new("http://127.0.0.1:1", "m", None, Patience::default()).unwrap(),
            workload: Workload::Prompts { prompts: vec![prompt], max_tokens: 1 },
            names_session: false,
            decisions: None,
            seed: 1,
            collector: collector.clone(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_screen_shows_the_figures_and_keys_change_the_load() {
        let seconds = Duration::from_secs;
        let collector = Collector::new(Objective::default(), seconds(60));
        let running = load(&collector).start(Arrivals::Closed(Ramp::flat(60.0)));
        let course = Course { warm_up: seconds(60), window: seconds(300), looks: 10, look_back: seconds(30) };
        let target = "a model at an endpoint".to_owned();
        let live = Arc::new(Live { collector: collector.clone(), control: running.control(), target });
        let mut screen = Screen::new(live, course);
        let measured = Measured {
            send_lag_s: 0.0,
            ttft_s: Some(0.7),
            tpot_s: Some(0.03),
            e2e_s: 3.0,
            gaps_s: Vec::new(),
            itl_mean_s: Some(0.0284),
            output_tokens: 100,
            prompt_tokens: Some(1000),
            cached_tokens: Some(900),
            error: None,
        };
        let record = TurnRecord {
            at_s: 0.0,
            warm_up: false,
            conversation: 1,
            topic: "t".into(),
            turn: 2,
            request_id: "r".to_owned(),
            worker: Some("worker-a".to_owned()),
            measured,
            complaint: None,
            decision: None,
        };
        collector.keep(collector.take(record, Instant::now()));
        tokio::time::advance(seconds(2)).await;
        screen.sample();
        let mut terminal = Terminal::new(TestBackend::new(140, 40)).unwrap();
        let phase = Phase::Measuring { left: seconds(120) };
        terminal.draw(|frame| screen.draw(frame, phase)).unwrap();
        let drawn: String = terminal.backend().buffer().content().iter().map(|cell| cell.symbol()).collect();
        for text in [
            "60 conversations at a time",
            "measuring, 120 s left",
            "700 / 700",
            "28.4",
            "worker-a",
            "90.0",
            "by turn",
        ] {
            assert!(drawn.contains(text), "{text} in {drawn}");
        }
        assert!(screen.press(KeyCode::Char('+'), KeyModifiers::NONE));
        assert_eq!(screen.live.control.level(), Some(Level::Concurrency(65)));
        assert!((0..20).all(|_| screen.press(KeyCode::Down, KeyModifiers::NONE)));
        assert_eq!(screen.live.control.level(), Some(Level::Concurrency(1)));
        assert!(!screen.press(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!screen.press(KeyCode::Char('c'), KeyModifiers::CONTROL));
        // However small it is.
        let mut tiny = Terminal::new(TestBackend::new(10, 3)).unwrap();
        tiny.draw(|frame| screen.draw(frame, phase)).unwrap();
    }
}
