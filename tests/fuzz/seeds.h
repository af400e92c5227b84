// The seed inputs of all fuzz targets.
#pragma once

#include <string>
#include <vector>

namespace cairn {

struct Seed {
  std::string target;  // whose corpus it belongs to
  std::string name;
  std::string bytes;
};

std::vector<Seed> AllSeeds();

std::vector<Seed> StoreSeeds();   // pack, footer
std::vector<Seed> BlockSeeds();   // node
std::vector<Seed> VolumeSeeds();  // journal
std::vector<Seed> RecordSeeds();  // records

}  // namespace cairn
