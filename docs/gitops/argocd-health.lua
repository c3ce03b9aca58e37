-- Health of a TrainingJob for Argo CD: resource.customizations.health.torchyard.dev_TrainingJob of argocd-cm.
local health = { status = "Progressing", message = "the operator has not looked at this job yet" }
local status = obj.status
if status == nil or status.state == nil then
  return health
end
health.message = status.message or status.state
if obj.metadata.deletionTimestamp ~= nil then
  return health
end
if status.observedGeneration ~= nil and obj.metadata.generation ~= nil
    and status.observedGeneration < obj.metadata.generation then
  health.message = "the operator has not looked at the newest spec yet"
  return health
end
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Stalled" and condition.status == "True" then
    health.status = "Degraded"
    health.message = condition.message or health.message
    return health
  end
end
if status.state == "Failed" then
  health.status = "Degraded"
elseif status.state == "Succeeded" or status.state == "Running" then
  health.status = "Healthy"
elseif status.state == "Suspended" or status.state == "Suspending" then
  health.status = "Suspended"
end
return health
