//! Metrics that are read off the state of things when someone asks, in Prometheus' text form.

use std::fmt::Write;

/// What kind a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
}

/// Text that grows one metric at a time.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// A metric with all its series: labels and a value each.
    pub fn metric<'l>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        series: impl IntoIterator<Item = (Vec<(&'l str, String)>, f64)>,
    ) {
        let mut series = series.into_iter().peekable();
        if series.peek().is_none() {
            return;
        }
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.head(name, kind, help);
        series.for_each(|(labels, value)| self.line(name, &labels, value));
    }

    /// A histogram: cumulated buckets with their `le`, and sums with counts.
    pub fn histogram<'l>(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl IntoIterator<Item = (Vec<(&'l str, String)>, f64)>,
        sums: impl IntoIterator<Item = (Vec<(&'l str, String)>, f64, f64)>,
    ) {
        let mut buckets = buckets.into_iter().peekable();
        if buckets.peek().is_none() {
            return;
        }
        self.head(name, "histogram", help);
        buckets.for_each(|(labels, value)| self.line(&format!("{name}_bucket"), &labels, value));
        for (labels, sum, count) in sums {
            self.line(&format!("{name}_sum"), &labels, sum);
            self.line(&format!("{name}_count"), &labels, count);
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a text does not fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn line(&mut self, name: &str, labels: &[(&str, String)], value: f64) {
        self.text.push_str(name);
        for (n, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if n == 0 { '{' } else { ',' });
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    pub fn text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_nothing_is_said_of_nothing() {
        let mut exposition = Exposition::default();
        exposition.metric("a", Kind::Gauge, "An a.", [(vec![("l", "x\"\n".to_owned())], 1.5), (vec![], 2.0)]);
        exposition.metric("b", Kind::Counter, "A b.", []);
        assert_eq!(exposition.text(), "# HELP a An a.\n# TYPE a gauge\na{l=\"x\\\"\\n\"} 1.5\na 2\n");
    }
}
