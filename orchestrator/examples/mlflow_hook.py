import json, sys, mlflow
mlflow.start_run(run_name="quickstart")
for step in map(json.loads, sys.stdin): mlflow.log_metrics({f"{part}.{name}": number for part, inner in step.items()
    if isinstance(inner, dict) for name, number in inner.items() if isinstance(number, (int, float))}, step=step["step"])
