#include "supervisor/cli/choose.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/status.h"

namespace baton {
namespace {

absl::StatusOr<std::vector<std::string>> ServiceNames(Invocation* invocation) {
  BATON_ASSIGN_OR_RETURN(const v1::ListServicesResponse known, invocation->AskServices());
  std::vector<std::string> names = NamesOf(known);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status SeveralAreThere(const std::string& what, const std::string& service,
                             const std::string& numbers) {
  return absl::InvalidArgumentError(
      absl::StrCat("name a ", what, " of service ", service, ": ", numbers));
}

}  // namespace

absl::Status ChooseService(Invocation* invocation, Purpose purpose, std::string* service) {
  if (!service->empty()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> names, ServiceNames(invocation));
  if (names.empty()) {
    return absl::NotFoundError("there is no service: batond's configuration has none");
  }
  if (names.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("name a service: there are ", absl::StrJoin(names, ", ")));
  }
  *service = names.front();
  if (purpose == Purpose::kChange && !invocation->json) {
    invocation->err << "service " << *service << ", the only one" << std::endl;
  }
  return absl::OkStatus();
}

absl::Status ChooseServiceOf(Invocation* invocation, Purpose purpose, std::string* service,
                             std::optional<uint64_t>* number) {
  uint32_t typed = 0;
  if (!*number && absl::SimpleAtoi(*service, &typed)) {
    BATON_ASSIGN_OR_RETURN(const std::vector<std::string> names, ServiceNames(invocation));
    if (std::find(names.begin(), names.end(), *service) == names.end()) {
      *number = typed;
      service->clear();
    }
  }
  return ChooseService(invocation, purpose, service);
}

absl::StatusOr<v1::GetWorkerResponse> AskWorker(Invocation* invocation, const std::string& service,
                                                uint64_t id) {
  auto request = About<v1::GetWorkerRequest>(service);
  request.set_worker_id(id);
  return invocation->Ask(&Operator::GetWorker, request);
}

std::vector<std::string> NamesOf(const v1::ListServicesResponse& services) {
  std::vector<std::string> names;
  for (const v1::Service& one : services.services()) names.push_back(one.name());
  return names;
}

absl::Status NoService(const std::string& name, const v1::ListServicesResponse& services) {
  return absl::NotFoundError(absl::StrCat(
      "there is no service \"", name, "\"; there are: ", absl::StrJoin(NamesOf(services), ", ")));
}

absl::StatusOr<uint64_t> OnlyWorker(Invocation* invocation, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse described, invocation->AskService(service));
  if (described.workers_size() == 1) return described.workers(0).id();
  if (described.workers().empty()) {
    return absl::NotFoundError(absl::StrCat("no worker is attached to service ", service));
  }
  return SeveralAreThere(
      "worker", service,
      absl::StrJoin(described.workers(), ", ", [](std::string* text, const v1::Worker& worker) {
        absl::StrAppend(text, worker.id());
      }));
}

absl::StatusOr<uint64_t> OnlyShard(Invocation* invocation, const std::string& service) {
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse described, invocation->AskService(service));
  if (described.shards_size() == 1) return 0;
  return SeveralAreThere("shard", service, absl::StrCat("0 to ", described.shards_size() - 1));
}

absl::StatusOr<uint64_t> OnlyConnection(Invocation* invocation, const std::string& service) {
  auto request = About<v1::ListConnectionsRequest>(service);
  request.set_shard(-1);
  request.set_page_size(2);
  BATON_ASSIGN_OR_RETURN(const v1::ListConnectionsResponse response,
                         invocation->Ask(&Operator::ListConnections, request));
  if (response.connections_size() == 1) return response.connections(0).connection().index();
  if (response.connections().empty()) {
    return absl::NotFoundError(absl::StrCat("service ", service, " has no connection"));
  }
  return SeveralAreThere("connection", service,
                         absl::StrCat("`baton connection list ", service, "` shows their numbers"));
}

}  // namespace baton
