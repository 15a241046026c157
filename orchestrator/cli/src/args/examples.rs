//! The examples in each command's help, at least two. A test parses each of them.

macro_rules! examples {
    ($($line:literal),+ $(,)?) => { concat!("Examples:", $("\n  ", $line),+) };
}

pub(super) const ROLLDOCK: &str = examples!(
    "rolldock run recipes/quickstart.toml             no GPU: a simulated fleet, our own data",
    "rolldock run recipes/dapo_qwen3_8b.toml --endpoint http://10.0.0.1:8000 --endpoint http://10.0.0.2:8000",
    "rolldock run RECIPE --set rollout.train_batch_size=64 --dry-run",
    "rolldock consume runs/quickstart --groups 8      take what a run left in its queue",
);

pub(super) const RUN: &str = examples!(
    "rolldock run recipes/quickstart.toml --steps 2",
    "rolldock run recipes/dapo_qwen3_8b.toml --endpoint http://10.0.0.1:8000 --dry-run",
    "rolldock run recipes/dapo_qwen3_8b.toml --wait-for-servers 600   servers may still be loading their model",
    "rolldock run --resume runs/quickstart            go on after an interruption",
);

pub(super) const SIMULATE: &str = examples!(
    "rolldock simulate recipes/quickstart.toml --sweep rollout.max_concurrent_prompts=4,8,16",
    "rolldock simulate recipes/dapo_qwen3_8b.toml --prompt-tokens 128 --servers 8 --sweep rollout.early_stop=first,fifo",
    "rolldock simulate RECIPE --sweep policy.mode=sync,fully_async --training-seconds 60 --svg pictures",
    "rolldock simulate RECIPE --engine engine.toml    servers as rolldock calibrate has measured one",
    "rolldock simulate --replay runs/quickstart --sweep fleet.servers=4,20   what if there were 16 more servers",
);

pub(super) const CALIBRATE: &str = examples!(
    "rolldock calibrate http://10.0.0.1:8000",
    "rolldock calibrate http://10.0.0.1:8000 --seconds 120 --max-batch 256 --output h100.toml",
);

pub(super) const SIMENGINE: &str = examples!(
    "rolldock simengine --ports 8000,8001             two servers, filler answers",
    "rolldock simengine --data data/arithmetic/train.jsonl --mean-response-length 200 --time-scale 0.1",
);

pub(super) const PROXY: &str = examples!(
    "rolldock proxy --endpoint http://10.0.0.1:8000 --endpoint http://10.0.0.2:8000",
    "rolldock proxy --fleet-file fleet.toml --policy least_work --max-loads auto --admin 127.0.0.1:7500",
);

pub(super) const GATEWAY: &str = examples!(
    "rolldock gateway --endpoint http://10.0.0.1:8000 --tokenizer Qwen/Qwen3-8B --out runs/agents",
    "rolldock gateway --endpoint http://127.0.0.1:8000 --tokenizer models/qwen3 --out runs/agents --durability os \
     --turns-max 20 --queue-listen 127.0.0.1:7070",
);

pub(super) const FLEET: &str =
    examples!("rolldock fleet list", "rolldock fleet --admin http://10.0.0.9:7500 drain 10.0.0.1:8000",);

pub(super) const FLEET_ADD: &str = examples!(
    "rolldock fleet add http://10.0.0.3:8000",
    "rolldock fleet add http://10.0.0.3:8000 --name spare --capacity 64",
);

pub(super) const FLEET_DRAIN: &str =
    examples!("rolldock fleet drain 10.0.0.1:8000", "rolldock fleet drain spare --wait 600");

pub(super) const FLEET_REMOVE: &str = examples!(
    "rolldock fleet remove 10.0.0.1:8000",
    "rolldock fleet remove spare --admin http://10.0.0.9:7500"
);

pub(super) const FLEET_PAUSE: &str = examples!(
    "rolldock fleet pause 10.0.0.1:8000",
    "rolldock fleet pause spare --admin http://10.0.0.9:7500"
);

pub(super) const FLEET_RESUME: &str = examples!(
    "rolldock fleet resume 10.0.0.1:8000",
    "rolldock fleet resume spare --admin http://10.0.0.9:7500"
);

pub(super) const FLEET_LIST: &str =
    examples!("rolldock fleet list", "rolldock fleet list --json --admin http://10.0.0.9:7500",);

pub(super) const FLEET_WATCH: &str =
    examples!("rolldock fleet watch", "rolldock fleet watch --admin http://10.0.0.9:7500");

pub(super) const DATA: &str = examples!(
    "rolldock data prepare recipes/grpo_gsm8k.toml --train train.jsonl --validation test.jsonl",
    "rolldock data prepare RECIPE --train FILE --validation-prompts 64",
);

pub(super) const DATA_PREPARE: &str = examples!(
    "rolldock data prepare recipes/dapo_qwen3_8b.toml --train dapo-math-17k.parquet --validation aime-2024.parquet",
    "rolldock data prepare RECIPE --train FILE --validation-prompts 64   set prompts apart for validation",
);

pub(super) const QUEUE: &str = examples!(
    "rolldock queue inspect runs/quickstart",
    "rolldock queue serve --dir queue --listen 127.0.0.1:7070",
);

pub(super) const QUEUE_INSPECT: &str = examples!(
    "rolldock queue inspect runs/quickstart           the queue of a run",
    "rolldock queue inspect http://127.0.0.1:7070     a queue that is served",
);

pub(super) const QUEUE_SERVE: &str = examples!(
    "rolldock queue serve --dir queue --listen 0.0.0.0:7070 --token secret",
    "rolldock queue serve --dir queue --uds queue.sock --durability os",
);

pub(super) const QUEUE_EXPORT: &str = examples!(
    "rolldock queue export runs/quickstart --format jsonl",
    "rolldock queue export runs/quickstart --format parquet --output rows.parquet",
    "rolldock queue export runs/quickstart --format jsonl --skip-damaged",
);

pub(super) const QUEUE_SNAPSHOT: &str = examples!(
    "rolldock queue snapshot http://127.0.0.1:7070 queue.snapshot",
    "rolldock queue snapshot runs/quickstart train.snapshot --partition train",
);

pub(super) const QUEUE_RESTORE: &str = examples!(
    "rolldock queue restore queue.snapshot runs/restored",
    "rolldock queue restore queue.snapshot http://127.0.0.1:7070",
);

pub(super) const QUEUE_UNIT: &str = examples!(
    "rolldock queue unit --controller http://10.0.0.1:7070 --listen 10.0.0.2:7071",
    "rolldock queue unit --controller http://10.0.0.1:7070 --dir unit",
);

pub(super) const QUEUE_WATCH: &str = examples!(
    "rolldock queue watch http://127.0.0.1:7070",
    "rolldock queue watch unix:queue.sock --partition train --every 5 --lines 12",
);

pub(super) const QUEUE_VERIFY: &str =
    examples!("rolldock queue verify runs/quickstart", "rolldock queue verify http://127.0.0.1:7070");

pub(super) const QUEUE_SALVAGE: &str = examples!(
    "rolldock queue salvage runs/quickstart rest.snapshot",
    "rolldock queue salvage runs/quickstart/queue rest.snapshot",
);

pub(super) const QUEUE_CLEAR: &str = examples!(
    "rolldock queue clear runs/quickstart --partition train --dry-run",
    "rolldock queue clear http://127.0.0.1:7070 --partition train --remove",
);

pub(super) const LEDGER: &str = examples!(
    "rolldock ledger runs/quickstart                  totals by fate, and each step",
    "rolldock ledger runs/quickstart --step 2         why step 2 is short",
    "rolldock ledger runs/quickstart --row 17 --json   every dispatch of the prompt in row 17",
);

pub(super) const WHY: &str = examples!(
    "rolldock why runs/quickstart                     a run of this machine, by its directory",
    "rolldock why http://127.0.0.1:9400 --json        a run by its address (report.listen)",
);

pub(super) const REPORT: &str = examples!(
    "rolldock report runs/quickstart                  writes runs/quickstart/report.html",
    "rolldock report runs/quickstart --step 2 --output page.html",
);

pub(super) const REWARD: &str = examples!(
    "rolldock reward score responses.jsonl --scorer gsm8k",
    "rolldock reward advantage groups.jsonl --estimator rloo",
);

pub(super) const REWARD_SCORE: &str = examples!(
    "rolldock reward score responses.jsonl --scorer gsm8k --set method=flexible",
    "rolldock reward score responses.jsonl --against math_dapo --against-set variant=2026 --show 5",
);

pub(super) const REWARD_ADVANTAGE: &str = examples!(
    "rolldock reward advantage groups.jsonl",
    "rolldock reward advantage - --estimator rloo --output advantages.jsonl",
);

pub(super) const CONSUME: &str = examples!(
    "rolldock consume runs/quickstart --groups 8",
    "rolldock consume http://127.0.0.1:7070 --task train --wait 60 --max-batches 10",
);

pub(super) const COMPLETIONS: &str = examples!("rolldock completions bash", "rolldock completions zsh",);

pub(super) const MAN: &str = examples!("rolldock man man1", "rolldock man target/man");
