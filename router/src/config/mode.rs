//! Settings that are one of a few words.

use serde::Serialize;

macro_rules! words {
    ($(#[doc = $doc:literal])* $Name:ident { $($(#[doc = $variant_doc:literal])* $Variant:ident = $word:literal,)+ }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        #[serde(into = "&'static str")]
        pub enum $Name {
            $($(#[doc = $variant_doc])* $Variant,)+
        }

        impl $Name {
            pub const ALL: &[Self] = &[$(Self::$Variant),+];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $word,)+
                }
            }
        }

        impl From<$Name> for &'static str {
            fn from(word: $Name) -> Self {
                word.name()
            }
        }

        impl std::str::FromStr for $Name {
            type Err = String;

            /// Dashes and underscores are the same, and so are capitals.
            fn from_str(text: &str) -> Result<Self, String> {
                let word = text.trim().to_lowercase().replace('-', "_");
                Self::ALL.iter().copied().find(|known| known.name() == word).ok_or_else(|| {
                    let known: Vec<&str> = Self::ALL.iter().map(|known| known.name()).collect();
                    format!("one of {}", known.join(", "))
                })
            }
        }
    };
}

words! {
    /// How workers are chosen.
    Mode {
        /// Where most of the prompt is cached, as far as load allows.
        Kv = "kv",
        /// The next in rotation.
        RoundRobin = "round_robin",
        Random = "random",
        /// Fewest requests.
        LeastLoaded = "least_loaded",
        /// The less loaded of two drawn ones.
        PowerOfTwo = "power_of_two",
        /// The same one for a session.
        Session = "session",
    }
}

words! {
    /// How mode `kv` weighs.
    KvPolicy {
        /// Slots, requests and blocks.
        Kvlane = "kvlane",
        /// The plain cost of Dynamo 0.9: blocks alone.
        Dynamo = "dynamo",
    }
}

words! {
    /// How KV events come.
    EventPlane {
        Auto = "auto",
        Zmq = "zmq",
        Nats = "nats",
    }
}

words! {
    /// How workers are spoken to that a source names without a URL.
    WorkerScheme {
        Http = "http",
        Https = "https",
    }
}

impl std::fmt::Display for WorkerScheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

words! {
    LogFormat {
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
}
