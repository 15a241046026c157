//! Agents in a sandbox of bubblewrap. The tests skip where the host cannot make one.

use std::path::{Path, PathBuf};

use super::*;
use crate::AgentSandbox;

/// Whether this host can make the sandbox.
fn is_possible() -> bool {
    let words = ["--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"];
    let made = std::process::Command::new("bwrap").args(words).output();
    let is_possible = made.is_ok_and(|made| made.status.success());
    if !is_possible {
        eprintln!("skipped: this host makes no sandbox with bwrap");
    }
    is_possible
}

/// A Python function in the file `my_agent.py` of `place`, which runs in a sandbox.
fn enclosed(place: &Path, body: &str) -> AgentConfig {
    AgentConfig { sandbox: AgentSandbox::Bubblewrap, ..function(place, body, "run", RewardBy::Agent) }
}

#[tokio::test]
async fn an_agent_in_a_sandbox_calls_the_model_and_sees_nothing_else() {
    if !is_possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let secret = tempfile::NamedTempFile::new().unwrap();
    let body = format!(
        r#"
import pathlib
def refused(act):
    try:
        act()
    except OSError:
        return True
def run(task):
    chat(task["messages"])
    here = pathlib.Path("my_agent.py")
    assert here.read_text() and refused(lambda: here.write_text("")), "the working directory is read-only"
    assert not os.path.exists({secret:?}), "a file of the host is seen"
    assert refused(lambda: open("/usr/x", "w")) and refused(lambda: open("/etc/x", "w"))
    assert not os.path.exists("/etc/shadow") and not os.path.exists("/sys/kernel")
    open(os.path.expanduser("~/note"), "w").write("x" * 1000)
    assert refused(lambda: open("/tmp/large", "w").write("x" * (9 << 20))), "the memory is unlimited"
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    assert len(processes) < 5, processes
    own = {{"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "PWD", "TMPDIR", "MINE"}}
    given = ("OPENAI_", "ANTHROPIC_", "ROLLDOCK_")
    others = [name for name in os.environ if name not in own and not name.startswith(given)]
    assert sorted(others) == ["HOME", "NO_PROXY", "no_proxy"], os.environ
    assert os.environ["MINE"] == "1" and os.environ["HOME"] == "/tmp", os.environ
    return 0.5
"#,
        secret = secret.path().display().to_string()
    );
    let mut config = enclosed(place.path(), &body);
    config.scratch_mb = 8;
    config.env.insert("MINE".to_owned(), "1".to_owned());
    let world = World::new(config).await;
    world.agents.check(&[]).await.unwrap();
    assert_eq!(world.run("t-1").await.unwrap().reward, Some(0.5));
    world.until_quiet().await;
}

/// The processes of this host that belong to an agent.
fn processes_of(world: &World, uid: &str) -> Vec<PathBuf> {
    let mark = format!("ROLLDOCK_AGENT={}/{uid}\0", world.folder.path().display());
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let is_marked = |process: &PathBuf| {
        let variables = std::fs::read(process.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&variables).contains(&mark)
    };
    all.filter(is_marked).collect()
}

#[tokio::test]
async fn a_dropped_agent_leaves_no_process_in_its_sandbox() {
    if !is_possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let body = r#"
def run(task):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    chat(task["messages"])
"#;
    let world = World::new(enclosed(place.path(), body)).await;
    world.server.inject(Fault::Stall);
    tokio::select! {
        _ = world.run("t-1") => panic!("the agent ended"),
        () = world.until("a call", || world.server.stats().admitted_total == 1) => {}
    }
    // `bwrap`, the first process of the namespace, the agent and its child.
    world.until_quiet().await;
    world.until("its processes end", || processes_of(&world, "t-1").is_empty()).await;
}

#[tokio::test]
async fn the_memory_of_each_process_in_a_sandbox_is_limited() {
    if !is_possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let body = r#"
def run(task):
    chat(task["messages"])
    code = subprocess.run([sys.executable, "-c", "bytearray(1 << 30)"], stderr=subprocess.DEVNULL).returncode
    return float(code)
"#;
    let mut config = enclosed(place.path(), body);
    config.memory_mb = Some(512);
    let world = World::new(config).await;
    assert_eq!(world.run("t-1").await.unwrap().reward, Some(1.0), "a child took more than the limit");
}

#[tokio::test]
async fn what_the_sandbox_hides_is_found_before_the_first_sample() {
    if !is_possible() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("agent.sh");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let of = |readable: Vec<PathBuf>| AgentConfig {
        command: Some(vec![program.display().to_string()]),
        sandbox: AgentSandbox::Bubblewrap,
        readable,
        ..AgentConfig::default()
    };
    World::new(of(vec![place.path().to_owned()])).await.agents.check(&[]).await.unwrap();
    for (readable, expected) in [
        (vec![], "agent.command: "),
        (vec![place.path().join("absent")], "expected a file or a directory at "),
    ] {
        let error = World::new(of(readable)).await.agents.check(&[]).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
