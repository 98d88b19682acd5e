"""FLAG (Chang et al., "Fast Label-Adaptive Aggregation for Multi-label Classification in Federated Learning", 2023).

This is our interpretation: we could not verify the exact weights. The published facts are that FLAG averages a label's
row of the head by how many of the label's instances each client has, and the encoder by the clients' label
distributions.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import Tensor

from fedalc.methods.fedavg import FedAvgFixed


class FLAG(FedAvgFixed):
    """W as in fedavg-fixed. The weight of a client in θ is the mean of its shares of all labels.

    If each label has one client, all clients have weight 1/C and `server.weights` has no effect. If clients are users,
    the weights of a user's label clients add up to the user's weight.
    """

    help = "label-adaptive aggregation: every label counts alike"
    use_when = "To compare with label-adaptive weights of clients"
    colour = "#8C6239"  # brown
    ignores = {"server.weights": {}}

    def weights(self, counts: Tensor, labels: np.ndarray) -> Tensor:
        present, column = np.unique(labels, return_inverse=True)  # labels without a participating client do not count
        entries = (counts.double().cpu().numpy(), (np.arange(len(labels)), column))
        instances = csr_matrix(entries, shape=(len(labels), len(present)))
        return torch.from_numpy(label_adaptive_weights(instances)).to(counts)


def label_adaptive_weights(instances: csr_matrix) -> np.ndarray:
    """Return p_k, the mean over labels c of α_kc = n_kc / Σ_j n_jc, or 1/K if no client has c.

    `instances`: the counts n, clients × labels.
    """
    clients, labels = instances.shape
    in_all = np.asarray(instances.sum(axis=0)).ravel()
    alpha = instances @ diags(np.divide(1.0, in_all, out=np.zeros(labels), where=in_all > 0))
    nobody = np.count_nonzero(in_all == 0) / clients
    return (np.asarray(alpha.sum(axis=1)).ravel() + nobody) / labels
