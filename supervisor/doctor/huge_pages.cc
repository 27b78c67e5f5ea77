// Checks that the kernel's pool has the huge pages that services ask for (huge_pages of their
// configuration).
#include <compare>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "supervisor/config/placement.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

// A part of the pool: pages of one size, of one NUMA node or of the whole machine.
struct Pool {
  uint64_t page_bytes = 0;
  std::optional<uint32_t> node;
  auto operator<=>(const Pool&) const = default;

  std::string pages() const {
    return absl::StrCat("huge pages of ", page_bytes >> 20, " MiB",
                        node ? absl::StrCat(" on NUMA node ", *node) : "");
  }
  std::string File(const std::string& name) const {
    const std::string above =
        node ? absl::StrCat("/sys/devices/system/node/node", *node) : "/sys/kernel/mm";
    return absl::StrCat(above, "/hugepages/hugepages-", page_bytes >> 10, "kB/", name);
  }
};

struct Demand {
  uint64_t pages = 0;
  std::vector<std::string> services;  // "kv 8"
};

std::map<Pool, Demand> DemandsOf(const View& view) {
  const auto read = [&view](const std::string& path) { return view.machine.Read(path); };
  std::map<Pool, Demand> demands;
  for (const ServiceNeeds& service : view.services) {
    if (service.huge_page_bytes == 0) continue;
    const RdmaDevice* const device = view.DeviceOf(service);
    const v1::Placement placement =
        PlacementOf(service.config.placement(), device == nullptr ? "" : device->name, read);
    Pool pool = {service.huge_page_bytes, std::nullopt};
    if (placement.has_numa_node()) pool.node = placement.numa_node();
    const uint64_t pages = service.shape.buffer_bytes / service.huge_page_bytes;
    Demand& demand = demands[pool];
    demand.pages += pages;
    demand.services.push_back(absl::StrCat(service.name(), " ", pages));
  }
  return demands;
}

uint64_t ReadNumber(const View& view, const std::string& path) {
  uint64_t number = 0;
  const std::optional<std::string> text = view.machine.Read(path);
  return text && absl::SimpleAtoi(*text, &number) ? number : 0;
}

// Services of a running batond have taken theirs, so all pages count.
uint64_t PagesOf(const View& view, const Pool& pool) {
  if (view.batond_pid) return ReadNumber(view, pool.File("nr_hugepages"));
  const uint64_t free = ReadNumber(view, pool.File("free_hugepages"));
  // A node has no such file.
  const uint64_t promised = ReadNumber(view, pool.File("resv_hugepages"));
  return free > promised ? free - promised : 0;
}

void CheckPool(const View& view, const Pool& pool, const Demand& demand, Report& report) {
  const Place place = {"huge pages"};
  const std::string consequence = pool.node
                                      ? "the buffers are on another node's, or on ordinary pages"
                                      : "the buffers are on ordinary pages";
  const std::string needed = absl::StrCat(absl::StrJoin(demand.services, ", "), ": ", demand.pages,
                                          " ", pool.pages(), " needed");
  if (!view.machine.Read(pool.File("nr_hugepages"))) {
    return report.Add(v1::SEVERITY_WARNING, place,
                      {needed + ", and this kernel or processor has none of that size", consequence,
                       absl::StrCat("in ", view.config_file, ": another huge_pages")});
  }
  const uint64_t has = PagesOf(view, pool);
  const std::string both = absl::StrCat(needed, ", ", has, view.batond_pid ? " in all" : " free");
  if (has >= demand.pages) return report.Ok(place, both);
  const uint64_t all = ReadNumber(view, pool.File("nr_hugepages")) + demand.pages - has;
  report.Add(v1::SEVERITY_WARNING, place,
             {both, consequence,
              absl::StrCat("echo ", all, " >", pool.File("nr_hugepages"),
                           "  # soon after boot, while memory is in one piece; before the service "
                           "starts")});
}

}  // namespace

void CheckPagesOfThePool(const View& view, Report& report) {
  if (!view.configured) return;
  for (const auto& [pool, demand] : DemandsOf(view)) CheckPool(view, pool, demand, report);
}

}  // namespace baton::doctor
