use clap::{CommandFactory, Parser};

use super::{Cli, Command, QueueCommand};

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn run_takes_repeated_options() {
    let line = "rolldock run r.toml --endpoint http://a:1 --endpoint http://b:2 --set a.b=1 --steps 3 --dry-run \
         --wait-for-servers 2.5";
    let Command::Run(args) = Cli::try_parse_from(line.split(' ')).unwrap().command else { panic!("run") };
    assert_eq!((args.endpoints.len(), args.set.len(), args.steps, args.dry_run), (2, 1, Some(3), true));
    assert_eq!(args.wait_for_servers, Some(2.5));
}

#[test]
fn export_needs_a_format() {
    assert!(Cli::try_parse_from(["rolldock", "queue", "export", "d"]).is_err());
    let line = ["rolldock", "queue", "export", "d", "--format", "jsonl"];
    let Command::Queue(args) = Cli::try_parse_from(line).unwrap().command else { panic!("queue") };
    assert!(matches!(args.command, QueueCommand::Export(_)));
}

#[test]
fn clear_needs_a_partition() {
    assert!(Cli::try_parse_from(["rolldock", "queue", "clear", "d"]).is_err());
    let line = ["rolldock", "queue", "clear", "d", "--partition", "p", "--remove"];
    let Command::Queue(args) = Cli::try_parse_from(line).unwrap().command else { panic!("queue") };
    assert!(matches!(args.command, QueueCommand::Clear(args) if args.remove && !args.dry_run));
}

/// Collects the names of a command and all its subcommands, with the last part of their help.
fn helps(command: &clap::Command, name: &str, found: &mut Vec<(String, String)>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    found.push((name.to_owned(), help));
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        helps(sub, &format!("{name} {}", sub.get_name()), found);
    }
}

#[test]
fn each_command_has_two_examples_or_more_and_each_parses() {
    let mut found = Vec::new();
    helps(&Cli::command(), "rolldock", &mut found);
    assert!(found.len() > 25, "{found:?}");
    for (name, help) in found {
        let examples: Vec<&str> = help.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert!(examples.len() >= 2, "{name} has {} examples", examples.len());
        for example in examples {
            // An explanation follows after three spaces.
            let line = example.split("   ").next().unwrap();
            assert!(line.starts_with(&name), "{name}: {line}");
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}

#[test]
fn the_values_of_options_are_those_of_the_types_that_they_set() {
    let policies = rolldock_loadbalancer::Policy::ALL.map(|policy| serde_json::json!(policy));
    let words: Vec<_> = super::words::POLICIES.iter().map(|(word, _)| serde_json::json!(word)).collect();
    assert_eq!(policies.to_vec(), words);
    let served = ["rolldock", "queue", "serve", "--durability"];
    for (word, _) in super::words::DURABILITIES {
        assert!(Cli::try_parse_from(served.into_iter().chain([*word])).is_ok(), "{word}");
    }
    let proxy = ["rolldock", "proxy", "--endpoint", "http://a:1", "--probe"];
    for (word, _) in super::words::PROBES {
        assert!(Cli::try_parse_from(proxy.into_iter().chain([*word])).is_ok(), "{word}");
    }
    assert!(Cli::try_parse_from(proxy.into_iter().chain(["none"])).is_err());
}

#[test]
fn the_version_begins_with_the_packages() {
    let version = Cli::command().render_version();
    assert!(version.starts_with(concat!("rolldock ", env!("CARGO_PKG_VERSION"))), "{version}");
}
