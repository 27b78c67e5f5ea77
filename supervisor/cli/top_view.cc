#include "supervisor/cli/top_view.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "supervisor/cli/format.h"
#include "supervisor/cli/service_table.h"

namespace baton {

std::optional<double> CounterRates::Update(const std::string& key, uint64_t incarnation,
                                           uint64_t value, double now_seconds) {
  const auto [entry, is_new] = seen_.try_emplace(key, Seen{incarnation, value, now_seconds});
  if (is_new) return std::nullopt;
  const Seen before = entry->second;
  entry->second = {incarnation, value, now_seconds};
  const double elapsed = now_seconds - before.seconds;
  if (before.incarnation != incarnation || value < before.value || elapsed <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(value - before.value) / elapsed;
}

void CounterRates::ForgetOlderThan(double seconds) {
  std::erase_if(seen_, [&](const auto& entry) { return entry.second.seconds < seconds; });
}

namespace {

using nlohmann::ordered_json;

void Add(const std::optional<double>& rate, std::optional<double>* sum) {
  if (rate) *sum = sum->value_or(0) + *rate;
}

constexpr const char* kSortNames[] = {"shard", "commits", "in flight"};  // in the order of TopSort

std::vector<TopShard> Sorted(std::vector<TopShard> shards, TopSort sort) {
  const auto key = [sort](const TopShard& one) {
    if (sort == TopSort::kCommits) return one.rates.commits.value_or(-1);
    return static_cast<double>(one.shard.send_requests_in_flight());
  };
  if (sort != TopSort::kShard) {
    std::stable_sort(shards.begin(), shards.end(),
                     [&](const TopShard& a, const TopShard& b) { return key(a) > key(b); });
  }
  return shards;
}

void PrintServices(std::ostream& out, const TopView& view, const TableStyle& style) {
  Table table(
      {"SERVICE", "!STATE", ">WORKERS", ">CONNS", ">COMMIT/S", ">SEND/S", ">COMPL/S", ">INFLIGHT"},
      style);
  for (const TopService& one : view.services) {
    const v1::Service& service = one.service;
    if (!service.reachable()) {
      table.Add({service.name(), StateOf(service)});
      continue;
    }
    table.Add({service.name(), StateOf(service),
               absl::StrCat(service.ready_workers(), "/", service.worker_count()),
               service.connection_count(), FormatRate(one.rates.commits),
               FormatRate(one.rates.sends), FormatRate(one.rates.completions),
               absl::StrCat(one.in_flight)});
  }
  table.Print(out);
}

std::vector<std::string> BlackoutCells(const v1::BlackoutSummary& blackout) {
  if (blackout.count() == 0) return {"0", "", "", ""};
  return {absl::StrCat(blackout.count()), FormatMicroseconds(blackout.p50_us()),
          FormatMicroseconds(blackout.p99_us()), FormatMicroseconds(blackout.max_us())};
}

void PrintBlackouts(std::ostream& out, const TopView& view) {
  Table table(
      {"BLACKOUTS", ">HANDOFFS", ">P50", ">P99", ">MAX", ">FAILOVERS", ">P50", ">P99", ">MAX"});
  for (const TopService& one : view.services) {
    if (!one.service.reachable()) continue;
    std::vector<std::string> row = {one.service.name()};
    for (const auto* blackout :
         {&one.service.handoff_blackout(), &one.service.failover_blackout()}) {
      const std::vector<std::string> cells = BlackoutCells(*blackout);
      row.insert(row.end(), cells.begin(), cells.end());
    }
    table.Add(row);
  }
  if (!table.empty()) table.Print(out);
  for (const TopService& one : view.services) {
    if (!one.service.has_upgrade()) continue;
    const v1::Upgrade& upgrade = one.service.upgrade();
    out << Printable(absl::StrCat(upgrade.rollback() ? "Rollback " : "Upgrade ", upgrade.id(),
                                  " of ", one.service.name(), ": ", FormatVersions(upgrade), ", ",
                                  FormatProgress(upgrade)))
        << '\n';
  }
}

void PrintShards(std::ostream& out, const TopView& view, TopSort sort) {
  Table table({"SERVICE", ">SHARD", ">OWNER", ">HEIR", ">EPOCH", ">COMMIT/S", ">SEND/S", ">COMPL/S",
               ">INFLIGHT", ">UNACKED"});
  for (const TopShard& one : Sorted(view.shards, sort)) {
    const v1::Shard& shard = one.shard;
    table.Add({one.service, shard.index(), FormatWorkerId(shard.owner_worker_id()),
               FormatWorkerId(shard.heir_worker_id()), shard.epoch(), FormatRate(one.rates.commits),
               FormatRate(one.rates.sends), FormatRate(one.rates.completions),
               shard.send_requests_in_flight(), shard.completions_unacknowledged()});
  }
  if (!table.empty()) table.Print(out);
}

void AddRates(const TopRates& rates, uint64_t in_flight, ordered_json* json) {
  const auto number = [](const std::optional<double>& rate) {
    return rate ? ordered_json(std::round(*rate * 10) / 10) : ordered_json(nullptr);
  };
  json->update({{"commits_per_second", number(rates.commits)},
                {"sends_per_second", number(rates.sends)},
                {"completions_per_second", number(rates.completions)},
                {"send_requests_in_flight", in_flight}});
}

// 64-bit integers are strings, as in the JSON of protobuf messages.
ordered_json JsonShard(const TopShard& one) {
  ordered_json json = {{"index", one.shard.index()},
                       {"owner_worker_id", absl::StrCat(one.shard.owner_worker_id())},
                       {"heir_worker_id", absl::StrCat(one.shard.heir_worker_id())},
                       {"epoch", absl::StrCat(one.shard.epoch())}};
  AddRates(one.rates, one.shard.send_requests_in_flight(), &json);
  return json;
}

ordered_json JsonService(const TopService& one, const std::vector<TopShard>& shards) {
  const v1::Service& service = one.service;
  ordered_json json = {{"name", service.name()},
                       {"state", StateOf(service)},
                       {"ready_workers", service.ready_workers()},
                       {"worker_count", service.worker_count()},
                       {"connection_count", service.connection_count()}};
  AddRates(one.rates, one.in_flight, &json);
  json["handoff_blackout"] = ordered_json::parse(ToJson(service.handoff_blackout()));
  json["failover_blackout"] = ordered_json::parse(ToJson(service.failover_blackout()));
  json["upgrade"] = nullptr;
  if (service.has_upgrade()) json["upgrade"] = v1::UpgradePhase_Name(service.upgrade().phase());
  ordered_json& list = json["shards"] = ordered_json::array();
  for (const TopShard& shard : shards) {
    if (shard.service == service.name()) list.push_back(JsonShard(shard));
  }
  return json;
}

}  // namespace

TopView MakeTopView(const v1::GetStatusResponse& status,
                    const std::vector<v1::GetServiceResponse>& described, double now_seconds,
                    CounterRates* rates) {
  TopView view;
  view.status = status;
  for (const v1::Service& service : status.services()) {
    TopService one;
    one.service = service;
    for (const v1::GetServiceResponse& response : described) {
      if (response.service().name() != service.name()) continue;
      one.service = response.service();
      const auto driver = static_cast<uint64_t>(one.service.driver_pid());
      for (const v1::Shard& shard : response.shards()) {
        const std::string key = absl::StrCat(service.name(), "/", shard.index(), "/");
        const TopRates grown = {
            rates->Update(key + "commits", driver, shard.commits(), now_seconds),
            rates->Update(key + "sends", driver, shard.sends_posted(), now_seconds),
            rates->Update(key + "completions", driver, shard.completions(), now_seconds)};
        Add(grown.commits, &one.rates.commits);
        Add(grown.sends, &one.rates.sends);
        Add(grown.completions, &one.rates.completions);
        one.in_flight += shard.send_requests_in_flight();
        view.shards.push_back({service.name(), shard, grown});
      }
    }
    view.services.push_back(std::move(one));
  }
  rates->ForgetOlderThan(now_seconds);
  std::sort(view.services.begin(), view.services.end(),
            [](const auto& a, const auto& b) { return a.service.name() < b.service.name(); });
  std::sort(view.shards.begin(), view.shards.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.service, a.shard.index()) < std::tuple(b.service, b.shard.index());
  });
  return view;
}

TopSort Next(TopSort sort) {
  return static_cast<TopSort>((static_cast<size_t>(sort) + 1) % std::size(kSortNames));
}

std::string FormatRate(const std::optional<double>& rate) {
  if (!rate) return "-";
  if (*rate == 0) return "0";
  if (*rate < 10) return absl::StrFormat("%.1f", *rate);
  if (*rate < 10e3) return absl::StrFormat("%.0f", *rate);
  if (*rate < 1e6) return absl::StrFormat("%.1fk", *rate / 1e3);
  return absl::StrFormat("%.2fM", *rate / 1e6);
}

std::string RenderTop(const TopView& view, const TopFrame& frame) {
  std::ostringstream out;
  out << "baton " << view.status.version().release() << ", control pid "
      << view.status.control_pid() << ", up "
      << FormatDuration(view.status.control_uptime_seconds()) << "; by "
      << kSortNames[static_cast<size_t>(frame.sort)] << (frame.note.empty() ? "" : "; ")
      << Printable(frame.note) << '\n';
  PrintServices(out, view, frame.style);
  PrintBlackouts(out, view);
  PrintShards(out, view, frame.sort);
  return out.str();
}

std::string RenderTopAsJson(const TopView& view) {
  ordered_json services = ordered_json::array();
  for (const TopService& one : view.services) services.push_back(JsonService(one, view.shards));
  const ordered_json json = ordered_json::object({{"services", services}});
  return json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace baton
