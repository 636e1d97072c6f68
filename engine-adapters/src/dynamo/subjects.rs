//! Where on NATS things are said.

/// Whose events: a component of a namespace, and its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub namespace: String,
    pub component: String,
    pub endpoint: String,
}

impl Default for Scope {
    fn default() -> Self {
        Self {
            namespace: "dynamo".to_owned(),
            component: "backend".to_owned(),
            endpoint: "generate".to_owned(),
        }
    }
}

/// The subjects of one scope. Segments are escaped as Dynamo does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    component: String,
    endpoint: String,
    stream: String,
}

impl Subjects {
    pub fn new(scope: &Scope) -> Self {
        let (namespace, component) = (escaped(&scope.namespace), escaped(&scope.component));
        let component = format!("namespace.{namespace}.component.{component}");
        Self {
            endpoint: format!("{component}.endpoint.{}", escaped(&scope.endpoint)),
            // Version 0.9 spelled the same words without dots.
            stream: slug(&format!("namespace.{}.component.{}.kv-events", scope.namespace, scope.component)),
            component,
        }
    }

    /// Where our bridge publishes events, as Dynamo does since 1.4.
    pub fn events(&self) -> String {
        format!("{}.kv-events", self.endpoint)
    }

    /// Everywhere events may be: of any endpoint, of the component (1.0 to 1.3), and of 0.9.
    pub fn all_events(&self) -> [String; 3] {
        [
            format!("{}.endpoint.*.kv-events", self.component),
            format!("{}.kv-events", self.component),
            format!("{}.kv-events", self.stream),
        ]
    }

    /// Load of workers.
    pub fn metrics(&self) -> String {
        format!("{}.kv_metrics", self.endpoint)
    }

    /// Ours: what routers have placed where, for each other.
    pub fn router_loads(&self) -> String {
        format!("{}.kvlane-router-loads", self.endpoint)
    }

    /// Ours: workers announced by their bridges.
    pub fn announcements(&self) -> String {
        format!("{}.kvlane-workers", self.component)
    }

    /// Ours: asks all bridges to announce their workers now.
    pub fn roll_call(&self) -> String {
        format!("{}.kvlane-roll-call", self.component)
    }

    /// Ours: what one publisher's worker holds, on request.
    pub fn snapshot(&self, publisher: u64) -> String {
        format!("{}.kvlane-snapshot.{publisher:x}", self.component)
    }
}

fn escaped(segment: &str) -> String {
    segment
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn slug(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' { c } else { '-' };
    text.to_lowercase().chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_spelled_as_dynamo_spells_them() {
        let subjects = Subjects::new(&Scope::default());
        assert_eq!(subjects.events(), "namespace.dynamo.component.backend.endpoint.generate.kv-events");
        assert_eq!(
            subjects.all_events(),
            [
                "namespace.dynamo.component.backend.endpoint.*.kv-events",
                "namespace.dynamo.component.backend.kv-events",
                "namespace-dynamo-component-backend-kv-events.kv-events",
            ]
        );
        let dotted = Scope { namespace: "team.a".to_owned(), ..Scope::default() };
        assert_eq!(
            Subjects::new(&dotted).metrics(),
            "namespace.team%2Ea.component.backend.endpoint.generate.kv_metrics"
        );
    }
}
