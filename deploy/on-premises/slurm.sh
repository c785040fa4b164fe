#!/usr/bin/env bash
#SBATCH --job-name=govray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:4
#SBATCH --time=24:00:00
#SBATCH --requeue
#
# One experiment on a Slurm allocation: `sbatch deploy/on-premises/slurm.sh jobs/train.yaml`, in a
# folder of `govray init` on the shared file system. What your nodes have stands above: CPUs, and GPUs.
# On nodes without GPUs: `sbatch --gres=none …`. The options of sbatch go before those of this file.
#
# Slurm ends every process at once when the time is over. So choose checkpoint.every_steps by what
# you can lose. Submitting the same file again goes on with the run, from its newest commit.
set -euo pipefail
config="${1:?the experiment file, such as jobs/train.yaml}"

export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"
export RAY_USAGE_STATS_ENABLED=0

head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"

# Ray starts on every node, the command runs on the first, and all of it ends with the command.
# It ends by `ray stop`, for all of your Ray on these nodes: hence --exclusive.
# A step is not given the CPUs of its job by itself: https://slurm.schedmd.com/srun.html, SRUN_CPUS_PER_TASK.
srun --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  ray symmetric-run --address "$head:${GOVRAY_PORT:-6379}" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" -- \
  python jobs/train.py --config "$config"
