use clap::ValueEnum;
use clap_complete::Shell;

use super::*;

#[test]
fn every_shell_has_completions_that_know_the_commands() {
    for shell in Shell::value_variants() {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), NAME, &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(script.contains("simengine") && script.contains("fleet-file"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    man(&ManArgs { dir: folder.path().join("man1") }).unwrap();
    for page in ["rolldock.1", "rolldock-run.1", "rolldock-queue-export.1", "rolldock-completions.1"] {
        let text = std::fs::read_to_string(folder.path().join("man1").join(page)).unwrap();
        assert!(text.contains("Examples"), "{page}");
    }
}
