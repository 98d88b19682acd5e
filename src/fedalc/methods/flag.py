"""FLAG (Chang et al., "Fast Label-Adaptive Aggregation for Multi-label Classification in Federated Learning", 2023).

A reading of the method, not a copy of it: its exact weights could not be verified. Known is that a label's row of the
head is averaged over clients by who holds how much of the label, and the encoder by the clients' label distributions.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import Tensor

from fedalc.methods.fedavg import FedAvgFixed


class FLAG(FedAvgFixed):
    """W as in fedavg-fixed; a client's part in θ is the mean of its parts in the labels.

    Where each label has one client, all count alike whatever `server.weights` says: this is fedavg-fixed with 1/C.
    Where users have the labels, the parts of a user's clients add up to the user's.
    """

    help = "label-adaptive aggregation: every label counts alike"
    colour = "#8C6239"  # brown
    ignores = {"server.weights": {}}

    def weights(self, counts: Tensor, labels: np.ndarray) -> Tensor:
        present, column = np.unique(labels, return_inverse=True)  # those that nobody here has are nobody's
        own = (counts.double().cpu().numpy(), (np.arange(len(labels)), column))
        held = csr_matrix(own, shape=(len(labels), len(present)))
        return torch.from_numpy(label_adaptive_weights(held)).to(counts)


def label_adaptive_weights(held: csr_matrix) -> np.ndarray:
    """p_k, the mean over labels of α_kc = n_kc / Σ_j n_jc (1/K where nobody holds c), from n: clients × labels."""
    clients, labels = held.shape
    in_all = np.asarray(held.sum(axis=0)).ravel()
    alpha = held @ diags(np.divide(1.0, in_all, out=np.zeros(labels), where=in_all > 0))
    nobody = np.count_nonzero(in_all == 0) / clients
    return (np.asarray(alpha.sum(axis=1)).ravel() + nobody) / labels
