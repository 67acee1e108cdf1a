# ruff: noqa: E501
"""The vocabulary of sensor files in many languages: months, column names, units, zones, marks for a missing value.

Data only; the stages that use it are in the other modules. Everything is lower case unless said otherwise.
"""

from __future__ import annotations

_MONTHS = """
january jan jänner jänn januar janvier janv enero ene gennaio gen janeiro januari styczeń stycznia sty leden ledna ocak янв января tammikuu
february feb februar février févr fév fevrier fevr febrero febbraio fevereiro fev februari luty lutego lut únor února şubat фев февраля helmikuu
march mar märz maerz mrz mär mars marzo março marco maart mrt marzec marca březen března mart мар марта maaliskuu
april apr avril avr abril abr aprile kwiecień kwietnia kwi duben dubna nisan апр апреля huhtikuu
may mai mayo maggio mag maio mei maj maja květen května mayıs май мая toukokuu
june jun juni juin junio giugno giu junho czerwiec czerwca cze červen června haziran июн июня kesäkuu
july jul juli juillet juil julio luglio lug julho lipiec lipca lip červenec července temmuz июл июля heinäkuu
august aug août aout aoû agosto ago augustus augusti sierpień sierpnia sie srpen srpna ağustos авг августа elokuu
september sep sept septembre septiembre settembre set setembro wrzesień września wrz září eylül сен сентября syyskuu
october oct okt oktober octobre octubre ottobre ott outubro out październik października paź říjen října ekim окт октября lokakuu
november nov novembre noviembre novembro listopad listopada lis kasım ноя ноября marraskuu
december dec dez dezember décembre déc decembre diciembre dic dicembre dezembro grudzień grudnia gru prosinec prosince aralık дек декабря joulukuu
"""
MONTHS: dict[str, int] = {
    word: number for number, line in enumerate(_MONTHS.strip().splitlines(), start=1) for word in line.split()
}
"""Month names and abbreviations in a dozen languages, to 1-12."""

CLOCK_PM = {"pm", "p.m.", "p.m", "p. m.", "nachm.", "下午", "午後"}
CLOCK_AM = {"am", "a.m.", "a.m", "a. m.", "vorm.", "上午", "午前"}

ZONE_OFFSETS: dict[str, int] = {
    "Z": 0, "UTC": 0, "GMT": 0, "UT": 0, "WET": 0, "WEST": 60, "BST": 60, "CET": 60, "MEZ": 60, "CEST": 120, "MESZ": 120,
    "EET": 120, "EEST": 180, "MSK": 180, "EST": -300, "EDT": -240, "CST": -360, "CDT": -300, "MST": -420, "MDT": -360,
    "PST": -480, "PDT": -420, "AKST": -540, "AKDT": -480, "HST": -600, "JST": 540, "KST": 540, "AWST": 480, "AEST": 600,
    "AEDT": 660, "ACST": 570, "ACDT": 630, "NZST": 720, "NZDT": 780, "BRT": -180, "SAST": 120, "SGT": 480, "HKT": 480,
    "ICT": 420, "WIB": 420, "WITA": 480, "WIT": 540, "PHT": 480, "MYT": 480, "PKT": 300, "NPT": 345, "ART": -180, "CLT": -240,
    "CLST": -180, "COT": -300, "PET": -300, "VET": -240, "UYT": -180, "TRT": 180, "EAT": 180, "CAT": 120, "WAT": 60,
}  # fmt: skip
"""Zone abbreviations (upper case), to minutes east of Greenwich."""

MANY_ZONES: dict[str, str] = {
    "IST": "Asia/Kolkata, Europe/Dublin or Asia/Jerusalem",
    "AST": "America/Halifax or Asia/Riyadh",
    "GST": "Asia/Dubai or Atlantic/South_Georgia",
    "AMT": "America/Manaus or Asia/Yerevan",
    "LST": "any place's own",
    "LT": "any place's own",
    "EPT": "America/New_York",
}
"""Abbreviations that name several zones, or none, and what they may mean."""

ZONE_PAIRS: dict[frozenset[str], str] = {
    frozenset({"CET", "CEST"}): "Europe/Berlin",
    frozenset({"MEZ", "MESZ"}): "Europe/Berlin",
    frozenset({"GMT", "BST"}): "Europe/London",
    frozenset({"WET", "WEST"}): "Europe/Lisbon",
    frozenset({"EET", "EEST"}): "Europe/Helsinki",
    frozenset({"EST", "EDT"}): "America/New_York",
    frozenset({"CST", "CDT"}): "America/Chicago",
    frozenset({"MST", "MDT"}): "America/Denver",
    frozenset({"PST", "PDT"}): "America/Los_Angeles",
    frozenset({"AKST", "AKDT"}): "America/Anchorage",
    frozenset({"AEST", "AEDT"}): "Australia/Sydney",
    frozenset({"ACST", "ACDT"}): "Australia/Adelaide",
    frozenset({"NZST", "NZDT"}): "Pacific/Auckland",
}
"""Standard and summer time seen together, to a zone with these rules."""

SUMMER_RULES: tuple[tuple[str, str], ...] = (
    ("EU", "Europe/Berlin"),
    ("US", "America/New_York"),
    ("UK", "Europe/London"),
    ("EU (eastern)", "Europe/Helsinki"),
    ("Australian", "Australia/Sydney"),
    ("New Zealand", "Pacific/Auckland"),
    ("Chilean", "America/Santiago"),
    ("Brazilian", "America/Sao_Paulo"),
)
"""Rules of summer time that plain local times are compared with, and a zone that follows each."""


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


PART_NAMES: dict[str, frozenset[str]] = {
    "year": _set("year yr yyyy yy jahr annee année an ano año anno rok jaar år ar vuosi год yıl"),
    "month": _set("kk month mon mo mm mnth monat mois mes mês mese maand miesiac miesiąc månad maned måned kuukausi месяц ay"),
    "day": _set("pv day dd dy tag jour jj dia día giorno dag dzień dzien paiva päivä день gün dayofmonth dom mday"),
    "hour": _set("hour hours hr hrs hh he stunde std heure heures hora horas ora ore uur timme time_h tunti час saat hourending godzina godz"),
    "minute": _set("minute minutes min mins mi mm_ minuten minuto minuti minuut minuta"),
    "second": _set("second seconds sec secs ss sekunde sekunden seconde segundo secondo seconden sekunda"),
    "yearday": _set("doy dayofyear julian julianday julday jday jd jul yday yearday dy_of_year dayofyr julian_day tag_im_jahr jourjulien day_of_year"),
    "week": _set("woche semaine_iso week wk kw weekofyear isoweek kalenderwoche semaine semana settimana vecka uge weeknumber weekno"),
    "quarter": _set("quarter qtr quartal trimestre kwartaal"),
    "hhmm": _set("hhmm hrmn hrmin hourminute hour_minute hhmmss hhmi time_hhmm timeutc"),
}  # fmt: skip
"""Names of columns that hold one part of a time."""

SUMMARY_NAMES = _set(
    "total totals sum mean average avg max maximum min minimum peak annual ann yearly daily j-d d-n djf mam jja son q1 q2 q3 q4 summe mittel jahresmittel tagesmittel moyenne"
)
"""Names of columns that say something of a whole line, beside the hours or months of it."""

ZONE_NAMES = _set(
    "tz tz_cd timezone time_zone zone zeitzone aikavyöhyke offset utc_offset tz_offset gmt_offset utcoffset fuseau"
)
"""Names of columns that hold the zone of each time."""
PERIOD_NAMES = _set(
    "settlement_period settlementperiod period sp viertelstunde quarterhour quarter_hour qh halfhour half_hour interval periodo período periode "
    "trading_period tradingperiod interval_number"
)  # fmt: skip
"""Names of columns that number the half hours or the quarters of an hour of a day."""

DATE_NAMES = _set(
    "date datum data fecha dato jour dia día giorno dag day dzien dzień päivämäärä дата tarih dteday 日期 日付 年月日 일자 날짜 obsdate datadate"
)
CLOCK_NAMES = _set(
    "time clock uhrzeit zeit heure hora ora orario tijd tid klokkeslett klockan czas godzina время saat hour stunde uhr hms "
    "時刻 时间 時間 시간 시각 mtu interval intervall zeitintervall"
)
MOMENT_NAMES = _set(
    "time timestamp datetime ts ds date datum date_time date/time date&time datetime_utc zeit zeitstempel zeitpunkt messzeit messdatum mess_datum "
    "datum/uhrzeit datum/zeit datumuhrzeit fecha fechahora fecha/hora fecha_hora data data/ora dataora data_hora datahora dataehora date/heure dateheure horodatage horodate "
    "datetime64 date_utc utc time_utc utc_timestamp timestamp_utc epoch unix unixtime unix_time unix_timestamp timestamp_ms time_ms epoch_ms tmstamp timestmp "
    "_time start von from begin beginn start_time starttime valid valid_time sampletime sample_time obs_time measured_at recorded_at created_at logged_at last_changed last_updated "
    "czas tijd tijdstip datumtijd tid tidpunkt datumtid дата время tarih 时间 日時 年月日時 年月日時分 일시 时刻 mtu observation_date local_time localtime"
)  # fmt: skip
"""Names of columns that hold a whole time."""

SERIES_NAMES = _set(
    "varname variablename pricearea price_area bidding_zone biddingzone duid region areacode messreihe sensorid deviceid dev_id eui deveui "
    "sensor sensor_id sensorid sensorname sensor_name id unique_id uniqueid item_id itemid series series_id seriesid name tag tagname tag_name channel "
    "channel_id variable variable_name parameter param parametername station station_id stationid stations_id station_name site site_id siteid device device_id "
    "deviceid point pointname point_id location location_id quantity metric entity_id entity signal signalname measurement _measurement _field node node_id meter meter_id "
    "meterid messstelle messpunkt kanal sensorname messgröße messgroesse bezeichnung capteur grandeur estacion estación variavel kanaal stof pollutant component komponente "
    "building building_id zone room mac address ts_id key code mp_id plant turbine turbine_id inverter inverter_id source_key"
)  # fmt: skip
PLACE_NAMES = _set(
    "lat latitude lon lng long longitude alt alti altitude elev elevation height höhe hoehe stationshöhe geobreite geolaenge breite länge latitud longitud altitud "
    "num_poste numer_sta stn stnid wmo wmo_id wban icao usaf stations_id station_id stationid station_no station_number geo_id geoid site_no poste indicativo ghcnd_id x_coord y_coord "
    "easting northing depth_m sensor_height ptid installed_capacity"
)
"""Names of columns that say where a sensor is, or how else it is called."""
VALUE_NAMES = _set(
    "varvalue val_num messung "
    "value values val y reading data measurement messwert wert valeur valor valore waarde værdi varde värde wartość state _value result conc concentration "
    "observation obs_value measured_value num_value numeric_value meter_reading raw_value mean avg"
)  # fmt: skip
SENSOR_NAMES = _set(
    "sensor sensor_id sensorid sensorname sensor_name unique_id uniqueid item_id series series_id seriesid device device_id deviceid station station_id "
    "stationid station_name tag tagname tag_name channel channel_id entity_id meter meter_id meterid node node_id varname messstelle deveui kanal"
)  # fmt: skip
"""Names that say so clearly that a column names the sensor of each row."""
COUNTER_NAMES = _set(
    "no no. nr nr. # id index idx row rownum row_number rowid record recnbr rec rn n number num lfd lfd.nr lfdnr obs seq sequence unnamed:_0 "
    "zeile nummer item entry entry_id record_number scan counter count_id x level_0"
)

LEVEL_NAMES = _set(
    "ch serial serials sn s/n seriennummer serial_no name names sensor sensors channel channels kanal unit units einheit einheiten unité tag tags description beschreibung "
    "bezeichnung location ort group gruppe type typ id device gerät variable parameter label quantity messgröße station stations site meter zähler plant anlage"
)
"""What stands before a row that names the columns once more: their serial numbers, places or sensors."""

UNIT_LABELS = _set("unit units einheit einheiten unité unités unidad eenheid enhet enhed unità")
PREFACE_LABELS = _set(
    "title source dataset_id preunit dimension dimensions precision file database datatype created updated version important stand quelle release"
) | {
    "stand vom", "release date", "next release", "source dataset id", "important notes", "last update", "last updated", "report date", "data count",
    "device type", "serial no", "sampling interval", "project", "customer",
}  # fmt: skip
"""What stands before a line that says something of the file, and names no columns."""

MISSING_WORDS = _set(
    "na n/e n/a nan null none nil - -- --- ---- ----- – — ? ?? ??? . .. ... * ** *** x missing nodata no_data n.a. n.a n.d. n.d nd k.a. k.a n.v. fehlt "
    "#n/a #na #n/a! #nv #null! #div/0! #value! #wert! #zahl! #ref! #num! #name? #valeur! #valor! err error fehler bad invalid void \\n m / // /// //// null. "
    "(null) <null> [null] <na> <nan> nan. -nan +nan 1.#qnan -1.#ind 1.#ind undef undefined unavailable unknown unbekannt offline ausfall absent vide "
    "brak s/d s.d. sd n.s. n/d over ovrflw over_range overrange under_range defekt nul ungültig keine manquant sin_dato ---.- --.- --.-- n/c not_available"
) | {"no data", "bad input", "i/o timeout", "not available", "not connected", "no value", "kein wert", "keine daten", "sin dato", "pt created", "over range", "no_value"}  # fmt: skip
"""Words that stand for a missing value among numbers."""

UNITS = _set(
    "yr mo dy mn degt deg_t cfs "
    "°c c °f f k degc degf °k deg_c celsius fahrenheit kelvin % %rh %rf rh pct percent %vol vol% hpa pa kpa mpa bar mbar mmhg inhg psi torr atm "
    "v mv µv uv kv a ma µa ua ka w kw mw gw mw/h va kva mva var kvar wh kwh mwh gwh j kj mj gj m mm cm km dm in ft inch inches mi m/s ms-1 m_s-1 km/h kmh kph mph kn kt kts knots "
    "l l/s l/min l/h lpm m3 m³ m^3 m3/h m³/h m^3/h m3/s m³/s nm3/h cfm gpm ppm ppb ppt µg/m³ µg/m3 ug/m3 ugm-3 μg/m³ μg/m3 mg/m³ mg/m3 mg/l g/m3 g/m³ µs/cm us/cm ms/cm ntu fnu ph "
    "w/m2 w/m² w/m^2 wm-2 j/cm2 j/cm² µmol/m2/s umol/m2/s mol hz khz mhz rpm 1/min u/min s sec ms min h hr hours minutes seconds d days deg ° degrees lux lx klux db dba "
    "kg g t t/h kg/h kg/s nm n kn ohm ω kω mol/l ft/s count counts pulses imp imp. - -- none n/a ts rn smp avg min max tot std unitless dimensionless boolean bool "
    "volts deg_c meters meters/second watts amps eur eur/mwh €/mwh €/kwh ct/kwh usd usd/mwh gbp/mwh string float double int integer datetime long text number date time yyyy-mm-dd "
    "dd.mm.yyyy hh:mm hh:mm:ss utc wvc samples kg/m3 kg/m³ mm/h l/m2 l/m² nm/h [] () 1 octa oktas okta gpd uw µw nw dbm"
)  # fmt: skip
"""Units, and the words that loggers write in a row of units or of processing."""

COMMON_LETTERS = {
    "cp932": set(
        "年月日時分秒気温風度速向量圧湿降水雪照東京大阪地点観測値名平均最高低電力使用実績予想供給開始終了番号品質情報均"
    ),
    "gb18030": set(
        "年月日时分秒气温风度速向量压湿降水雪照间期电力功率站点测值名称平均最高低序号编数据开始结束实际预流负荷设备"
    ),
    "cp949": set("지점명일시년월분기온강수량풍속향습도압력전사용간발측정소평균최고저값번호시작종료예실시적설일조"),
    "big5": set(
        "年月日時分秒氣溫風度速向量壓濕降水雪照間期電力功率站點測值名稱平均最高低序號編數據開始結束實際預流負荷設備"
    ),
}
"""Letters of common words in files of Japan, China, Korea and Taiwan."""
