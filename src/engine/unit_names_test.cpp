// Tests the names of units and the identities of their collectives.
#include "engine/unit_names.h"

namespace fsdp::engine::unit_names_test {
namespace {

UnitNames names_of(std::vector<std::string> fqns, bool automatic = false) {
  UnitOrigin origin{{}, automatic};
  for (std::string& fqn : fqns) origin.modules.push_back({std::move(fqn), nullptr});
  return UnitNames(std::move(origin));
}

TEST(UnitNames, AreThoseOfTheModules) {
  EXPECT_EQ(names_of({"layers.0"}).unit(), "layers.0");
  EXPECT_EQ(names_of({"norm", "head"}).unit(), "norm+head");
  EXPECT_EQ(names_of({""}).unit(), "root");
  EXPECT_EQ(names_of({"root"}).unit(), "root.");  // a child of that name is another unit
}

TEST(UnitNames, FollowTheModulesBelowANewRoot) {
  UnitNames names = names_of({"norm", "head"});
  names.rename_modules({"model.norm", "model.head"});
  names.name_unit("model.norm.weight", "model.head.weight");
  EXPECT_EQ(names.unit(), "model.norm+model.head");
  EXPECT_EQ(names.modules().back().fqn, "model.head");
}

TEST(UnitNames, OfAutomaticUnitsAreTheirFirstAndLastParameter) {
  UnitNames names = names_of({""}, /*automatic=*/true);
  names.name_unit("a.weight", "b.bias");
  EXPECT_EQ(names.unit(), "a.weight..b.bias");
  names.name_unit("a.weight", "a.weight");
  EXPECT_EQ(names.unit(), "a.weight");
}

TEST(UnitNames, NumberFlatParametersFromTheSecondOn) {
  const UnitNames names = names_of({"block"});
  EXPECT_EQ(names.flat_parameter(0), "block.flat_param");
  EXPECT_EQ(names.flat_parameter(1), "block.flat_param_2");
}

TEST(UnitNames, CountTheCollectivesOfEachPass) {
  UnitNames names = names_of({"block"});
  EXPECT_EQ(names.next_collective(Pass::kForward, 1).generation, 0);
  EXPECT_EQ(names.next_collective(Pass::kForward, 1).generation, 1);
  EXPECT_EQ(names.next_collective(Pass::kReduce, 1).generation, 0);
  EXPECT_EQ(names.next_collective(Pass::kReduce, 1).name, "block");
  EXPECT_EQ(names.next_collective(Pass::kReduce, 2).name, "block (model 2)");
}

}  // namespace
}  // namespace fsdp::engine::unit_names_test
