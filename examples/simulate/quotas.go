package main

func quotas(r Run) (map[string]any, error) { return map[string]any{}, nil }
