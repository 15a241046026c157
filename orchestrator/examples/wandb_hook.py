import json, sys, wandb
run = wandb.init(project="rolldock", id="quickstart", resume="allow")
for step in map(json.loads, sys.stdin): run.log(step, step=step["step"])
