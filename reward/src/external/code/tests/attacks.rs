//! Tests with hostile candidates.

use tokio::net::TcpListener;
use tokio::time::sleep;

use super::*;

/// Unit tests that expect a program to print nothing.
fn silent() -> String {
    prints("", "")
}

fn is_crash(pred: &str, error: &str) -> bool {
    pred.starts_with("crashed exit=") && pred.contains(error)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_is_contained() {
    let bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    for fixture in fixtures(|config| config.time_s = 2.0).await {
        let job = code_job(bomb, &silent());
        let run = fixture.runner.score(&job);
        tokio::pin!(run);
        let mut most = 0;
        let score = loop {
            tokio::select! {
                score = &mut run => break score.unwrap(),
                () = sleep(Duration::from_millis(50)) => most = most.max(fixture.processes().len()),
            }
        };
        assert_eq!(score.pred.unwrap(), "timed out at test=1");
        // The bound includes the commands around the candidate. A candidate without a user of its own shares
        // its limit with other tests that run at the same time.
        let bound = if fixture.is_caged() || is_root() { 16 + 6 } else { 200 };
        assert!((2..=bound).contains(&most), "{:?} ran {most} processes", fixture.choice);
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_that_ends_at_the_limit_of_processes_has_crashed() {
    // The candidate ends soon, but a busy machine may need longer.
    for fixture in fixtures(|_| {}).await {
        let bomb = fixture.pred("import os\nwhile True: os.fork()", &silent()).await;
        assert_eq!(bomb.split(' ').next(), Some("crashed"), "{bomb}");
        fixture.leaves_nothing().await;
        assert_eq!(fixture.pred("print(1)", &prints("", "1")).await, "passed", "others go on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_printer_is_cut_off() {
    for fixture in fixtures(|config| config.output_bytes_max = 100_000).await {
        for stream in ["stdout", "stderr"] {
            let printer = format!("import sys\nwhile True: print('x' * 1000, file=sys.{stream})");
            let started = Instant::now();
            assert_eq!(fixture.pred(&printer, &silent()).await, "output at test=1");
            assert!(started.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(fixture.pred("print('x' * 90000)", &prints("", &"x".repeat(90_000))).await, "passed");
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_candidate_and_its_children_end_at_the_deadline() {
    let session = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.setsid()\ntime.sleep(1000)";
    let other_program = "import subprocess\nsubprocess.run(['sleep', '1000'], start_new_session=True)";
    for fixture in fixtures(|config| config.time_s = 1.0).await {
        for sleeper in ["import time\ntime.sleep(1000)", session, other_program, "while True: pass"] {
            let started = Instant::now();
            assert_eq!(fixture.pred(sleeper, &silent()).await, "timed out at test=1");
            // The bound is much shorter than the sleep, and long enough for a busy machine.
            assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
            fixture.leaves_nothing().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_a_candidate_leaves_end_with_it() {
    let daemon = "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(1000)\n    time.sleep(1000)\nprint('done')";
    let bare = "import subprocess\nsubprocess.Popen(['sleep', '1000'], env={}, start_new_session=True)\nprint('done')";
    for fixture in fixtures(|_| {}).await {
        for candidate in [daemon, bare] {
            let started = Instant::now();
            assert_eq!(fixture.pred(candidate, &prints("", "done")).await, "passed");
            assert!(started.elapsed() < Duration::from_secs(60), "no call waits for it");
            fixture.leaves_nothing().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_thief_finds_nothing() {
    let vault = tempfile::tempdir().unwrap();
    let secret = vault.path().join("secret");
    std::fs::write(&secret, "the secret").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(vault.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mine = env!("CARGO_MANIFEST_DIR");
    let reads = format!(
        "for path in [{secret:?}, '/etc/shadow', '/etc/passwd', '{mine}/Cargo.toml', '/proc/1/root/etc/passwd']:\n    \
         try: print(open(path).read()[:20])\n    except OSError: pass"
    );
    let writes = format!(
        "for path in ['{}/left', '/left', '/usr/left', '/etc/left', '/candidate.py', '/proc/sys/vm/swappiness']:\n    \
         try: open(path, 'a').write('0'); print('wrote', path)\n    except OSError: pass",
        vault.path().display()
    );
    for fixture in fixtures(|_| {}).await {
        if fixture.is_caged() {
            assert_eq!(fixture.pred(&reads, &silent()).await, "passed", "{:?}", fixture.choice);
            assert_eq!(fixture.pred(&writes, &silent()).await, "passed", "{:?}", fixture.choice);
            assert!(!vault.path().join("left").exists());
        } else if is_root() {
            let closed = reads.replace("'/etc/passwd', ", "").replace(&format!("'{mine}/Cargo.toml', "), "");
            assert_eq!(fixture.pred(&closed, &silent()).await, "passed", "a user of its own owns nothing");
        } else {
            eprintln!("skipped: without namespaces or root a candidate has this user's files");
        }
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_recipe_names_is_readable_besides() {
    let shelf = tempfile::tempdir().unwrap();
    std::fs::set_permissions(shelf.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(shelf.path().join("book"), "a word").unwrap();
    let path = shelf.path().join("book");
    let reads = format!("print(open({path:?}).read())\nopen({path:?}, 'w')");
    for fixture in fixtures(|config| config.readable = vec![shelf.path().to_owned()]).await {
        if fixture.is_caged() {
            let pred = fixture.pred(&reads, &prints("", "a word")).await;
            assert!(is_crash(&pred, "Read-only file system"), "{pred}");
        }
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), "a word");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_has_an_end() {
    let slow = "kept = []\nwhile True: kept.append(bytearray(1 << 20))";
    for fixture in fixtures(|config| config.memory_mb = 200).await {
        for hog in ["x = bytearray(1 << 34)", slow] {
            assert_eq!(fixture.pred(hog, &silent()).await, "memory at test=1");
        }
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_an_end_too() {
    let one = "with open('f', 'wb') as f:\n    for _ in range(40): f.write(bytes(1 << 20))";
    let many = "for n in range(40):\n    with open(f'f{n}', 'wb') as f: f.write(bytes(1 << 20))";
    for fixture in fixtures(|_| {}).await {
        assert!(is_crash(&fixture.pred(one, &silent()).await, "OSError"));
        if fixture.is_caged() {
            for place in ["", "/tmp/", "/dev/shm/"] {
                let pred = fixture.pred(&many.replace("f'f", &format!("f'{place}f")), &silent()).await;
                assert!(is_crash(&pred, "No space left"), "{place}: {pred}");
            }
        }
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_resist_are_removed() {
    let deep = "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nos.chmod('.', 0)";
    let closed = "import os\nos.mkdir('d')\nopen('d/f', 'w').close()\nos.chmod('d', 0)\ntry: os.chmod('.', 0)\nexcept OSError: pass";
    for fixture in fixtures(|_| {}).await {
        for candidate in [deep, closed] {
            assert_eq!(fixture.pred(candidate, &silent()).await, "passed");
            fixture.leaves_nothing().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_network() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let caller = format!(
        "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 3)\n    print('connected')\n\
         except OSError: print('alone')"
    );
    for fixture in fixtures(|_| {}).await {
        let wanted = if fixture.is_caged() { "alone" } else { "connected" };
        assert_eq!(fixture.pred(&caller, &prints("", wanted)).await, "passed", "{:?}", fixture.choice);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_environment_is_not_theirs() {
    assert!(std::env::var("CARGO_MANIFEST_DIR").is_ok(), "there is something to be seen");
    let names = "import os\nprint(*sorted(name for name in os.environ if not name.startswith(('PYTHON', 'LC_', 'OMP_', 'OPENBLAS_', 'MALLOC_'))))";
    for fixture in fixtures(|_| {}).await {
        let pred = fixture.pred(names, &prints("", "HOME LANG PATH ROLLDOCK_CANDIDATE TMPDIR")).await;
        // Shells and commands before the candidate add variables of their own.
        let with_shell =
            fixture.pred(names, &prints("", "HOME LANG OLDPWD PATH PWD ROLLDOCK_CANDIDATE TMPDIR")).await;
        let with_place =
            fixture.pred(names, &prints("", "HOME LANG PATH PWD ROLLDOCK_CANDIDATE TMPDIR")).await;
        assert!([pred, with_shell, with_place].contains(&"passed".to_owned()), "{:?}", fixture.choice);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_cannot_gain_privileges() {
    let powers = "import os, subprocess\n\
         for deed in [lambda: os.setuid(1), lambda: os.chroot('/'), lambda: os.nice(-5)]:\n    \
         try: deed(); print('could')\n    except OSError: pass\n\
         caps = [line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm', 'CapBnd'))]\n\
         print([int(cap, 16) for cap in caps])";
    let mounts = "import subprocess\nrun = subprocess.run(['unshare', '--user', '--map-root-user', '--mount', 'true'], capture_output=True)\nprint(run.returncode)";
    let kills = "import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass\ntry: os.kill(1, signal.SIGKILL)\nexcept OSError: pass\nprint('alone')";
    for fixture in fixtures(|_| {}).await.iter().filter(|fixture| fixture.is_caged()) {
        assert_eq!(fixture.pred(powers, &prints("", "[0, 0, 0]")).await, "passed", "{:?}", fixture.choice);
        let is_locked = fixture.choice == SandboxChoice::Namespaces || !is_root();
        if is_locked {
            assert_eq!(fixture.pred(mounts, &prints("", "1")).await, "passed", "{:?}", fixture.choice);
        }
        let pred = fixture.pred(kills, &prints("", "alone")).await;
        assert!(pred == "passed" || pred.starts_with("crashed signal="), "{pred}");
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_job_leaves_nothing() {
    let busy = "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        break\nopen('f', 'w').write('x')\ntime.sleep(1000)";
    for fixture in fixtures(|_| {}).await {
        for wait_ms in [0, 3, 30, 500] {
            let job = code_job(busy, &silent());
            let dropped = timeout(Duration::from_millis(wait_ms), fixture.runner.score(&job)).await;
            assert!(dropped.is_err());
            fixture.leaves_nothing().await;
        }
        assert_eq!(fixture.pred("print(1)", &prints("", "1")).await, "passed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tests_together_have_a_limit() {
    let naps = "import time\ntime.sleep(1)";
    let pairs = json!({ "inputs": vec![""; 50], "outputs": vec![""; 50] }).to_string();
    let change = |config: &mut CodeConfig| {
        // The first test has this long to start Python on a busy machine.
        (config.time_s, config.time_all_s, config.continuous) = (12.0, 12.0, true);
    };
    let fixture = fixture(SandboxChoice::Auto, change).await.unwrap();
    let score = fixture.score(naps, &pairs).await;
    assert!(score.acc == 0.0 && score.score < 0.25, "{score:?}");
    assert!(score.pred.unwrap().starts_with("timed out in all"));
    fixture.leaves_nothing().await;
}
