"""Operations of each part of a model: layer, embedding, head, routing, optimizer."""
