"""Names of NCCL and its users that are no algorithms here, and what to ask for instead."""

from __future__ import annotations

_ONLY_NCCL = "is NCCL's own and no schedule here; model=nccl-tuner with algorithm=all times it where NCCL has it"
_IN_NETWORK = "reduces in the network's switches, as sharp does here; nccl is what NCCL would take"
# Names of NCCL and its users (NCCL_ALGO, without _ and -) that are no entries, and what to ask for instead.
NCCL_NAMES = {
    "tree": "NCCL's tree is chain_tree here; double_binary has all ranks in its two trees, and model=nccl-tuner with "
    "algorithm=all times NCCL's own",
    "doublebinarytree": "the double binary tree is double_binary, with chains inside the nodes chain_tree",
    "pat": f"PAT {_ONLY_NCCL}",
    "collnet": f"CollNet {_IN_NETWORK}",
    "collnetdirect": f"CollNetDirect {_IN_NETWORK}",
    "collnetchain": f"CollNetChain {_IN_NETWORK}",
    "oneshot": "direct is the one-shot way",
    "rabenseifner": "Rabenseifner's algorithm is halving_doubling",
}
