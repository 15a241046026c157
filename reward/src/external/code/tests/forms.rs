//! Tests of each form of unit tests.

use super::*;
use crate::ErrorClass;
use crate::external::ExternalConfig;
use tokio_util::sync::CancellationToken;

const ADD: &str = "I add.\n```python\ndef add(a: List[int], b):\n    return a + b\n```\nDone.";
const METHOD: &str = "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```";
const SUMS: &str = "```python\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))\n```";
const CALLS: &str = r#"{"inputs": [[1, 2], [[1], [2]], "\"x\"\n\"y\""], "outputs": [3, [[1, 2]], "\"xy\""], "fn_name": "add"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_right_candidate_passes_every_form_at_every_level() {
    for fixture in fixtures(|_| {}).await {
        let pairs = r#"{"inputs": ["1 2\n", "5\n6"], "outputs": ["3\n\n", "11"]}"#;
        assert_eq!(fixture.pred(SUMS, pairs).await, "passed");
        let listed = r#"[{"input": "1 2", "output": "3", "testtype": "stdin"}]"#;
        assert_eq!(fixture.pred(SUMS, listed).await, "passed");
        for response in [ADD, METHOD] {
            assert_eq!(fixture.pred(response, CALLS).await, "passed");
        }
        for checks in [
            r#"{"functional": "def check(f):\n    assert f(1, 2) == 3\ncheck(add)"}"#,
            r#"["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]"#,
            "assert add(1, 2) == 3\nassert add(2, 2) == 4",
        ] {
            assert_eq!(fixture.pred(ADD, checks).await, "passed");
        }
        let score = fixture.score(ADD, CALLS).await;
        assert_eq!((score.score, score.acc), (1.0, 1.0));
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_candidate_fails_with_the_number_of_its_test() {
    for fixture in fixtures(|_| {}).await {
        let pairs = r#"{"inputs": ["1 2", "3", "4"], "outputs": ["3", "4", "5"]}"#;
        assert_eq!(fixture.pred(SUMS, pairs).await, "wrong answer at test=2");
        let calls = r#"{"inputs": [[1, 2], [2, 2]], "outputs": [3, 5], "fn_name": "add"}"#;
        assert_eq!(fixture.pred(ADD, calls).await, "wrong answer at test=2");
        assert_eq!(fixture.pred(ADD, "[\"assert add(1, 2) == 4\"]").await, "wrong answer at test=1");
        let crash = fixture.pred("def add(a, b):\n    return c", "assert add(1, 2) == 3").await;
        assert_eq!(crash, "crashed exit=1 (NameError: name 'c' is not defined) at test=1");
        assert!(fixture.pred("def add(a b)", calls).await.starts_with("crashed exit=1 (SyntaxError"));
        assert!(fixture.pred("nothing", calls).await.contains("NameError"));
        assert!(fixture.pred("x = 1", calls).await.contains("AttributeError"));
        let status = fixture.pred("print(3)\nexit(7)", &prints("", "3")).await;
        assert_eq!(status, "crashed exit=7 at test=1");
        let signal = fixture.pred("import os\nos.kill(os.getpid(), 11)", &prints("", "")).await;
        assert_eq!(signal, "crashed signal=11 at test=1");
        fixture.leaves_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_early_is_no_success() {
    let fixture = fixture(SandboxChoice::Auto, |_| {}).await.unwrap();
    let calls = r#"{"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}"#;
    for leaves in [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "def add(a, b):\n    exit(0)",
        "print('passed')\nquit()",
        "raise SystemExit",
    ] {
        for tests in [calls, "assert add(1, 2) == 3", r#"{"functional": "check(add)"}"#] {
            let pred = fixture.pred(leaves, tests).await;
            let is_early = pred == "exited early at test=1" || pred.contains("NameError: name 'check'");
            assert!(is_early, "{leaves:?}: {pred}");
        }
    }
    let writes = "import os\nfor fd in range(1, 9):\n    try: os.write(fd, b'3')\n    except OSError: pass\nos._exit(0)";
    assert_eq!(fixture.pred(writes, "assert add(1, 2) == 3").await, "wrong answer at test=1");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_score_is_all_or_a_share() {
    let pairs = r#"{"inputs": ["1", "2", "3", "4"], "outputs": ["1", "0", "3", "0"]}"#;
    for (continuous, wanted) in [(false, 0.0), (true, 0.5)] {
        let fixture = fixture(SandboxChoice::Limits, |config| config.continuous = continuous).await.unwrap();
        let score = fixture.score(SUMS, pairs).await;
        assert_eq!((score.score, score.acc), (wanted, 0.0));
        assert_eq!(score.pred.unwrap(), "wrong answer at test=2");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_programs_and_functions_are_not() {
    let fixture = fixture(SandboxChoice::Auto, |_| {}).await.unwrap();
    let main =
        "def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    print(add(int(input()), 1))";
    assert_eq!(fixture.pred(main, &prints("4", "5")).await, "passed");
    assert_eq!(fixture.pred(main, "assert add(1, 2) == 3").await, "passed");
    let dataclass = "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(n):\n    print('hello')\n    return [P(n).x] * 2";
    let calls = r#"{"inputs": [[7]], "outputs": [[7, 7]], "fn_name": "f"}"#;
    assert_eq!(fixture.pred(dataclass, calls).await, "passed");
    let opens = "print(open('/dev/stdin').read().upper())\nopen('kept', 'w').write('x')";
    let twice = r#"{"inputs": ["a", "b"], "outputs": ["A", "B"]}"#;
    assert_eq!(fixture.pred(opens, twice).await, "passed");
    let looks = "import os\nprint(os.listdir('.'))\nopen('kept', 'w').write('x')";
    let empty = r#"{"inputs": ["", ""], "outputs": ["[]", "[]"]}"#;
    assert_eq!(fixture.pred(looks, empty).await, "passed", "each test has an empty directory");
    let large = "1".repeat(300_000);
    assert_eq!(fixture.pred("print(len(input()))", &prints(&large, "300000")).await, "passed");
    assert_eq!(fixture.pred("print('read nothing')", &prints(&large, "read nothing")).await, "passed");
    let factorial = r#"{"inputs": [[50]], "outputs": [30414093201713378043612608166064768844377641568960512000000000000], "fn_name": "f"}"#;
    let exact = "def f(n):\n    return math.factorial(n)";
    let off_by_one = "def f(n):\n    return math.factorial(n) + 1";
    assert_eq!(fixture.pred(exact, factorial).await, "passed");
    assert_eq!(fixture.pred(off_by_one, factorial).await, "wrong answer at test=1");
}

#[test]
fn only_white_space_at_ends_is_free() {
    for (printed, expected) in [("a \nb\n\n", "a\nb"), ("", "\n"), ("a\r\nb", "a\nb\n"), ("1\t\n", "1")] {
        assert!(same_text(printed.as_bytes(), expected), "{printed:?}");
    }
    for (printed, expected) in [(" a", "a"), ("a\n\nb", "a\nb"), ("a  b", "a b"), ("", "a"), ("A", "a")] {
        assert!(!same_text(printed.as_bytes(), expected), "{printed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_and_settings_that_cannot_be_scored_are_errors() {
    let fixture = fixture(SandboxChoice::Limits, |config| config.output_bytes_max = 10).await.unwrap();
    let error = fixture.runner.score(&code_job(ADD, "42")).await.unwrap_err();
    assert!(matches!(error, RewardError::Invalid { what: "ground_truth", .. }), "{error}");
    let error = fixture.runner.score(&code_job(SUMS, &prints("", "more than ten bytes"))).await.unwrap_err();
    assert!(matches!(error, RewardError::Misconfigured { key: "code.output_bytes_max", .. }), "{error}");
    fixture.leaves_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_fails_is_an_error_and_no_score() {
    let small = fixture(SandboxChoice::Limits, |config| config.memory_mb = 1).await.err().unwrap();
    assert!(matches!(small, RewardError::Unloadable { .. }), "{small}");
    let none = fixture(SandboxChoice::Auto, |config| config.interpreter = "no-such-python".into()).await;
    assert_eq!(none.err().unwrap().class(), ErrorClass::Client);
    let no_python = fixture(SandboxChoice::Auto, |config| config.interpreter = "/bin/true".into()).await;
    assert!(no_python.err().unwrap().to_string().contains("to be a Python"));
    let unreadable =
        fixture(SandboxChoice::Bubblewrap, |config| config.readable = vec!["/no/such/place".into()]);
    let error = unreadable.await.err().unwrap();
    assert!(error.to_string().contains("bubblewrap: "), "an explicit choice that does not work: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipe_makes_it_with_its_guard() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let text = format!(
        "[code]\ninterpreter = {:?}\ndirectory = {:?}\nworkers = 2\ntime_s = 20",
        interpreter(),
        folder.path()
    );
    let config: ExternalConfig = toml::from_str(&text).unwrap();
    let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
    let runner = config.build(tracker.clone(), token.clone()).unwrap();
    assert_eq!(runner.check().await, Ok(()));
    let jobs: Vec<RewardJob> =
        (0..6).map(|n| code_job(SUMS, &prints(&n.to_string(), &n.to_string()))).collect();
    let scores = futures::future::join_all(jobs.iter().map(|job| runner.score(job))).await;
    assert!(scores.iter().all(|score| score.as_ref().is_ok_and(|score| score.score == 1.0)), "{scores:?}");
    let slow = code_job("while True: pass", &prints("", ""));
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        token.cancel();
    };
    let (result, ()) = tokio::join!(runner.score(&slow), cancel);
    assert_eq!(result, Err(RewardError::Cancelled));
    tracker.close();
    assert!(timeout(Duration::from_secs(20), tracker.wait()).await.is_ok());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
