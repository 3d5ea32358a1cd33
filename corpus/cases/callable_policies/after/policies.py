def is_trainable_leaf(module):
    """Adapters are sharded on their own, apart from the frozen weights around them."""
    return (
        len(list(module.named_children())) == 0
        and getattr(module, "weight", None) is not None
        and module.weight.requires_grad
    )


def has_many_parameters(module):
    return type(module).__name__ == "Expert" and sum(p.numel() for p in module.parameters()) > 100


def get_lambda_policy():
    return is_trainable_leaf


def get_or_policy(layer_cls):
    def auto_wrap_policy(module):
        return is_trainable_leaf(module) or isinstance(module, layer_cls)

    return auto_wrap_policy


def get_custom_policy():
    return has_many_parameters
