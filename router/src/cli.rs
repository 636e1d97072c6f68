//! The command line, made from the settings' one declaration.

use std::io::{Read, Write};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;

use crate::access::{self, Digest};
use crate::config::{Config, ConfigError, KNOBS, Settings, Sources, without_passwords};

/// What the process was asked to do.
#[derive(Debug)]
pub enum Task {
    Run,
    /// Print every setting, its value and its origin.
    PrintConfig,
    /// Print a file with every default.
    PrintDefaults,
    /// Print what there is to set, as Markdown.
    PrintReference,
    Completions(Shell),
    /// Ask a server whether it is well; ourselves when none is named.
    Health(Option<String>),
    /// Make an API key of this name.
    NewKey(String),
    /// Read a key and print what it is known by.
    HashKey,
}

/// What rooms are called in the help.
fn heading(room: &str) -> &'static str {
    match room {
        "server" | "admin" | "access" | "tls" => "Serving",
        "model" | "index" | "tokenizer" => "Model and cache",
        "routing" => "Routing",
        "workers" | "proxy" | "events" => "Workers",
        _ => "Logs",
    }
}

pub fn command() -> Command {
    let mut command = Command::new("kvlane")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Routes OpenAI requests to the LLM replica that has most of their prompt cached.")
        .max_term_width(120)
        .args_conflicts_with_subcommands(false)
        .disable_help_subcommand(true)
        .after_help(
            "Every setting can also be given as KVLANE_ROOM_NAME in the environment or as room.name in the file; flags \
             win over the environment, that over the file. `kvlane config --defaults` lists them all.\n\
             Two vLLM servers: kvlane --worker http://gpu-0:8000 --worker http://gpu-1:8000",
        )
        .subcommand(
            Command::new("config")
                .about("Shows the settings as they would be")
                .arg(
                    Arg::new("print")
                        .long("print")
                        .action(ArgAction::SetTrue)
                        .help("Every setting, its value, and where that came from"),
                )
                .arg(
                    Arg::new("defaults")
                        .long("defaults")
                        .action(ArgAction::SetTrue)
                        .conflicts_with("print")
                        .help("A file with every default, to start from"),
                )
                .arg(
                    Arg::new("markdown")
                        .long("markdown")
                        .action(ArgAction::SetTrue)
                        .conflicts_with_all(["print", "defaults"])
                        .help("What there is to set, as Markdown"),
                ),
        )
        .subcommand(
            Command::new("health")
                .about("Asks a server whether it is well; fails when it is not")
                .arg(Arg::new("url").value_name("URL").help("[default: /live of a router with these settings]")),
        )
        .subcommand(
            Command::new("key")
                .about("Makes API keys")
                .subcommand_required(true)
                .subcommand(
                    Command::new("new")
                        .about("Prints a new key, once, and its entry for the keys' file")
                        .arg(Arg::new("name").value_name("NAME").required(true).help("What the key is called")),
                )
                .subcommand(Command::new("hash").about("Reads a key from its input and prints its SHA-256")),
        )
        .subcommand(
            Command::new("completions")
                .about("Prints completions for a shell")
                .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell))),
        )
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .global(true)
                .help_heading("Serving")
                .help("Settings in TOML"),
        );
    for knob in KNOBS {
        let Some(flag) = knob.flag else { continue };
        let mut help = knob.doc.trim().to_owned();
        if knob.default != "''" && knob.default != "[]" {
            help.push_str(&format!(" [default: {}]", knob.default.trim_matches('\'')));
        }
        if !knob.env.is_empty() {
            help.push_str(&format!(" [env: {}]", knob.env.join(", ")));
        }
        let many = knob.default == "[]";
        command = command.arg(
            Arg::new(flag)
                .long(flag)
                .value_name(knob.value)
                .allow_negative_numbers(true)
                .action(if many { ArgAction::Append } else { ArgAction::Set })
                .global(true)
                .help_heading(heading(knob.room))
                .help(help),
        );
    }
    command.arg(
        Arg::new("set")
            .long("set")
            .value_name("ROOM.NAME=VALUE")
            .action(ArgAction::Append)
            .global(true)
            .help_heading("Logs")
            .help("Any other setting; may be repeated"),
    )
}

/// What was asked, and the settings for it.
pub fn read(
    matches: &ArgMatches,
    env: std::collections::BTreeMap<String, String>,
) -> Result<(Task, Sources), ConfigError> {
    let (task, matches) = match matches.subcommand() {
        Some(("config", asked)) if asked.get_flag("defaults") => (Task::PrintDefaults, asked),
        Some(("config", asked)) if asked.get_flag("markdown") => (Task::PrintReference, asked),
        Some(("health", asked)) => (Task::Health(asked.get_one::<String>("url").cloned()), asked),
        Some(("config", asked)) => (Task::PrintConfig, asked),
        Some(("key", asked)) => match asked.subcommand() {
            Some(("new", asked)) => {
                (Task::NewKey(asked.get_one::<String>("name").cloned().unwrap_or_default()), asked)
            }
            _ => (Task::HashKey, asked),
        },
        Some(("completions", asked)) => {
            let shell = asked.get_one::<Shell>("shell").copied().unwrap_or(Shell::Bash);
            (Task::Completions(shell), asked)
        }
        _ => (Task::Run, matches),
    };
    let path =
        matches.get_one::<PathBuf>("config").cloned().or_else(|| env.get("KVLANE_CONFIG").map(PathBuf::from));
    let file = match path {
        None => None,
        Some(path) => {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(&path)
                .map_err(|error| ConfigError::File { path: shown.clone(), error: error.to_string() })?;
            Some((shown, text))
        }
    };
    let mut flags = Vec::new();
    for knob in KNOBS {
        let Some(flag) = knob.flag else { continue };
        if let Some(values) = matches.get_many::<String>(flag) {
            flags.push((knob.key(), flag.to_owned(), values.cloned().collect()));
        }
    }
    let set = matches.get_many::<String>("set").map(|set| set.cloned().collect()).unwrap_or_default();
    Ok((task, Sources { flags, set, env, file }))
}

/// Variables that look like settings and are none; said, not refused, because clusters set variables of their own.
pub fn strange_variables(sources: &Sources) -> Vec<&str> {
    let ours = |name: &str| name == "KVLANE_CONFIG" || KNOBS.iter().any(|knob| knob.own_env() == name);
    let injected =
        |name: &str| name.contains("_SERVICE_") || name.contains("_PORT") || name.contains("_TRACE");
    let names = sources.env.keys().map(String::as_str);
    names.filter(|name| name.starts_with("KVLANE_") && !ours(name) && !injected(name)).collect()
}

/// Settings as lines: key, value, origin.
pub fn print_config(settings: &Settings, out: &mut impl Write) -> std::io::Result<()> {
    for (knob, value, origin) in settings.all() {
        writeln!(out, "{:<32} {:<40} {origin}", knob.key(), without_passwords(value).to_string())?;
    }
    Ok(())
}

/// A new key, on a line of its own, and its entry for the keys' file.
pub fn print_new_key(name: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let key = access::new_key().map_err(anyhow::Error::msg)?;
    let entry = format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"\n", Digest::of(key.as_bytes()).hex());
    // What could not be read back is not handed out.
    access::read_keys(&entry, 1).map_err(anyhow::Error::msg)?;
    write!(out, "{key}\n\n{entry}")?;
    Ok(())
}

/// What a key is known by.
pub fn print_digest(input: impl Read, out: &mut impl Write) -> anyhow::Result<()> {
    let mut key = String::new();
    input.take(MOST_INPUT).read_to_string(&mut key)?;
    anyhow::ensure!(!key.trim().is_empty(), "there is nothing to read, expected a key");
    writeln!(out, "{}", Digest::of(key.trim().as_bytes()).hex())?;
    Ok(())
}

/// No key is longer.
const MOST_INPUT: u64 = 4096;

/// A file with every setting's meaning and default.
pub fn print_defaults(out: &mut impl Write) -> std::io::Result<()> {
    let mut room = "";
    for knob in KNOBS {
        if knob.room != room {
            writeln!(out, "{}[{}]", if room.is_empty() { "" } else { "\n" }, knob.room)?;
            room = knob.room;
        }
        writeln!(out, "# {}", knob.doc.trim())?;
        let names = knob.flag.map(|flag| format!("--{flag}")).into_iter();
        let names: Vec<String> =
            names.chain([knob.own_env()]).chain(knob.env.iter().map(|name| (*name).to_owned())).collect();
        writeln!(out, "# ({})\n{} = {}", names.join(", "), knob.name, knob.default)?;
    }
    Ok(())
}

/// Every setting with its names, default and meaning, as Markdown.
pub fn print_reference(out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "# Settings\n\nWritten by `kvlane config --markdown`. Flags win over the environment, that over the file \
         (`--config FILE`), that over the default; `--set room.name=value` sets any of them."
    )?;
    let mut room = "";
    for knob in KNOBS {
        if knob.room != room {
            room = knob.room;
            writeln!(
                out,
                "\n## [{room}]\n\n| setting | default | flag | environment | |\n|---|---|---|---|---|"
            )?;
        }
        let flag = knob.flag.map_or_else(String::new, |flag| format!("`--{flag}`"));
        let names: Vec<String> = std::iter::once(knob.own_env())
            .chain(knob.env.iter().map(|name| (*name).to_owned()))
            .map(|name| format!("`{name}`"))
            .collect();
        let meaning = knob.doc.trim().replace('|', "\\|");
        writeln!(
            out,
            "| `{}` | `{}` | {flag} | {} | {meaning} |",
            knob.name,
            knob.default,
            names.join(", ")
        )?;
    }
    Ok(())
}

/// For tests and embedding: settings from flags alone.
pub fn config_of(flags: &[&str]) -> Result<(Config, Settings), String> {
    let command = command();
    let matches = command
        .try_get_matches_from(std::iter::once(&"kvlane").chain(flags))
        .map_err(|error| error.to_string())?;
    let (_, sources) =
        read(&matches, std::collections::BTreeMap::new()).map_err(|error| error.to_string())?;
    Config::load(&sources).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_whole_and_fits_a_screen() {
        command().debug_assert();
        let help = command().render_help().to_string();
        assert!(help.lines().count() <= 60, "{} lines", help.lines().count());
        assert!(help.contains("--router-mode <MODE>") && help.contains("DYN_ROUTER_MODE"), "{help}");
        let (config, _) = config_of(&[
            "--port",
            "0",
            "--worker",
            "http://a:1",
            "--worker",
            "http://b:2",
            "--set",
            "proxy.retries=0",
        ])
        .unwrap();
        assert_eq!((config.server.port, config.workers.list.len(), config.proxy.retries), (0, 2, 0));
        assert!(config_of(&["--ports", "1"]).unwrap_err().contains("--port"));
    }

    /// What is printed as defaults can be read back, and changes nothing.
    #[test]
    fn defaults_are_a_file_that_says_what_there_is() {
        let mut text = Vec::new();
        print_defaults(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let sources = Sources { file: Some(("defaults".into(), text)), ..Sources::default() };
        let (config, _) = Config::load(&sources).unwrap();
        let printed = |config: &Config| serde_json::to_value(config).unwrap();
        assert_eq!(printed(&config), printed(&Config::defaults().unwrap()));
    }

    #[test]
    fn settings_are_shown_with_their_origin_and_without_passwords() {
        let sources = Sources {
            env: [("NATS_SERVER".to_owned(), "nats://me:secret@n:4222".to_owned())].into(),
            ..Sources::default()
        };
        let (_, settings) = Config::load(&sources).unwrap();
        let mut text = Vec::new();
        print_config(&settings, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find(|line| line.starts_with("events.nats_url")).unwrap();
        assert!(line.contains("nats://***@n:4222") && line.ends_with("environment NATS_SERVER"), "{line}");
        assert!(!text.contains("secret"));
        for (urls, shown) in [
            ("nats://me:secret@a:4222,nats://me:secret@b:4222", "nats://***@a:4222,nats://***@b:4222"),
            ("me:secret@a:4222", "***@a:4222"),
            ("nats://a:4222/x@y", "nats://a:4222/x@y"),
        ] {
            assert_eq!(without_passwords(&urls.into()), shown);
        }
        let env =
            [("KVLANE_MODE".to_owned(), "kv".to_owned()), ("KVLANE_SERVICE_HOST".to_owned(), "x".to_owned())];
        let sources = Sources { env: env.into(), ..Sources::default() };
        assert_eq!(strange_variables(&sources), ["KVLANE_MODE"]);
    }
}
