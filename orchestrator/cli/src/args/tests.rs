use clap::CommandFactory;

use super::{Cli, Command, QueueCommand};

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn run_takes_repeated_options() {
    let line = "rolldock run r.toml --endpoint http://a:1 --endpoint http://b:2 --set a.b=1 --steps 3 --dry-run \
         --wait-for-servers 2.5";
    let Command::Run(args) = Cli::of_line(line.split(' ')).unwrap().command else { panic!("run") };
    assert_eq!((args.endpoints.len(), args.set.len(), args.steps, args.dry_run), (2, 1, Some(3), true));
    assert_eq!(args.wait_for_servers, Some(2.5));
}

#[test]
fn export_needs_a_format() {
    assert!(Cli::of_line(["rolldock", "queue", "export", "d"]).is_err());
    let line = ["rolldock", "queue", "export", "d", "--format", "jsonl"];
    let Command::Queue(args) = Cli::of_line(line).unwrap().command else { panic!("queue") };
    assert!(matches!(args.command, QueueCommand::Export(_)));
}

#[test]
fn clear_needs_a_partition() {
    assert!(Cli::of_line(["rolldock", "queue", "clear", "d"]).is_err());
    let line = ["rolldock", "queue", "clear", "d", "--partition", "p", "--remove"];
    let Command::Queue(args) = Cli::of_line(line).unwrap().command else { panic!("queue") };
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
            Cli::of_line(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
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
        assert!(Cli::of_line(served.into_iter().chain([*word])).is_ok(), "{word}");
    }
    let proxy = ["rolldock", "proxy", "--endpoint", "http://a:1", "--probe"];
    for (word, _) in super::words::PROBES {
        assert!(Cli::of_line(proxy.into_iter().chain([*word])).is_ok(), "{word}");
    }
    assert!(Cli::of_line(proxy.into_iter().chain(["none"])).is_err());
}

#[test]
fn the_version_begins_with_the_packages() {
    let version = Cli::command().render_version();
    assert!(version.starts_with(concat!("rolldock ", env!("CARGO_PKG_VERSION"))), "{version}");
}

/// The error of a command line.
fn refusal(line: &[&str]) -> clap::Error {
    Cli::of_line([&["rolldock"], line].concat()).unwrap_err()
}

const GATEWAY: [&str; 7] = ["gateway", "--endpoint", "http://a:1", "--out", "d", "--tokenizer", "builtin"];

#[test]
fn a_number_out_of_range_is_refused_with_its_option_and_the_range() {
    let natural = format!("from 0 to {}", u64::MAX);
    let gateway = |option, value| [&GATEWAY[..], &[option, value]].concat();
    let simulate = |option, value| vec!["simulate", "r.toml", option, value];
    let cases = [
        (vec!["simengine", "--seed", "-1"], "0", &natural[..]),
        (vec!["simengine", "--time-scale", "nan"], "0.5", "from 0.000001 to 1000000"),
        (vec!["simengine", "--time-scale", "0"], "0.5", "from 0.000001 to 1000000"),
        (vec!["simengine", "--max-num-seqs", "0"], "1", "1..=4294967295"),
        (vec!["simengine", "--mean-response-length", "nan"], "400", "from 1 to 1000000"),
        (vec!["simengine", "--mean-response-length", "inf"], "400", "from 1 to 1000000"),
        (vec!["simengine", "--mean-response-length", "-3"], "400", "from 1 to 1000000"),
        (vec!["simengine", "--mean-response-length", "0"], "400", "from 1 to 1000000"),
        (gateway("--temperature", "nan"), "0.5", "from 0 to 100"),
        (gateway("--temperature", "-0.5"), "0.5", "from 0 to 100"),
        (gateway("--top-p", "0"), "1", "above 0 and at most 1"),
        (gateway("--top-p", "nan"), "1", "above 0 and at most 1"),
        (gateway("--top-k", "-7"), "-1", "-1..=2147483647"),
        (gateway("--turns-max", "0"), "1", "1..=4294967295"),
        (gateway("--tokens-max", "0"), "1", "from 1 to"),
        (gateway("--turn-tokens-max", "0"), "1", "1..=4294967295"),
        (gateway("--capacity-rows", "0"), "1", "from 1 to"),
        (vec!["consume", "d", "--groups", "0"], "1", "from 1 to"),
        (vec!["consume", "d", "--groups", "-1"], "1", "from 1 to"),
        (vec!["consume", "d", "--wait", "18446744073709551615"], "0", "from 0 to 10000000"),
        (simulate("--speeds", "1,nan"), "1,0.5", "from 0.001 to 1000"),
        (simulate("--speeds", "-1"), "1,0.5", "from 0.001 to 1000"),
        (simulate("--steps", "-5"), "1", "from 1 to 10000"),
        (vec!["queue", "watch", "d", "--every", "nan"], "0.5", "from 0 to 10000000"),
        (vec!["fleet", "drain", "s", "--wait", "-1"], "0", "from 0 to 10000000"),
        (vec!["proxy", "--endpoint", "http://a:1", "--threads", "0"], "1", "from 1 to"),
    ];
    for (mut line, allowed, range) in cases {
        let error = refusal(&line);
        let (option, words) = (line[line.len() - 2], error.to_string());
        assert_eq!(error.exit_code(), 2);
        assert!(words.contains(option) && words.contains(range), "{line:?}: {words}");
        line.pop();
        line.push(allowed);
        Cli::of_line([&["rolldock"], &line[..]].concat()).unwrap();
    }
}

#[test]
fn a_negative_number_is_the_value_of_every_option_but_no_argument_of_its_own() {
    let taken = ["rolldock", "run", "r.toml", "--wait-for-servers", "-5", "--set", "-1"];
    let Command::Run(args) = Cli::of_line(taken).unwrap().command else { panic!("run") };
    assert_eq!((args.wait_for_servers, args.set), (Some(-5.0), vec!["-1".to_owned()]));
    assert!(refusal(&["run", "-5"]).to_string().contains("unexpected argument '-5'"));
}

#[test]
fn names_of_the_queue_are_not_empty_and_servers_are_base_urls() {
    for option in ["--partition", "--task"] {
        let words = refusal(&[&GATEWAY[..], &[option, ""]].concat()).to_string();
        assert!(words.contains(option), "{words}");
    }
    for url in ["localhost:8000", "127.0.0.1:8000", "https://a:1", "http://", "http://a:1/v1", ""] {
        let unit = ["queue", "unit", "--controller"];
        let advertised = [&unit[..], &["http://a:1", "--advertise", url]].concat();
        for line in [
            vec!["calibrate", url],
            [&GATEWAY[..], &["--endpoint", url]].concat(),
            [&unit[..], &[url]].concat(),
            advertised,
        ] {
            let words = refusal(&line).to_string();
            assert!(words.contains("expected a base URL like http://host:port"), "{url}: {words}");
        }
    }
    let Command::Calibrate(args) = Cli::of_line(["rolldock", "calibrate", "http://a:1/"]).unwrap().command
    else {
        panic!("calibrate")
    };
    assert_eq!(args.endpoint, "http://a:1");
    let advertised = |url| [&GATEWAY[..], &["--advertise", url]].concat();
    assert!(refusal(&advertised("a:1")).to_string().contains("--advertise"));
    Cli::of_line([&["rolldock"], &advertised("https://a/agents")[..]].concat()).unwrap();
}
